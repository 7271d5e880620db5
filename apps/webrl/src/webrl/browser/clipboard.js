// A browser has one clipboard for all its contexts. This gives each context its own: what is copied
// is kept in the page's own window instead, where the next action fetches it, and a pasting key finds
// there what was copied last. The events are dispatched again with that data, so that the page's own
// handlers decide as always.
(() => {
  const COPIED = Symbol.for('awrl.copied'), TO_PASTE = Symbol.for('awrl.paste');
  const LONGEST = 1e6;
  const home = () => {
    try {
      return top.document ? top : window;
    } catch {
      return window; // a frame of another site
    }
  };
  const keep = (data) => {
    const short = Object.entries(data).map(([type, text]) => [type, String(text).slice(0, LONGEST)]);
    home()[COPIED] = JSON.stringify(Object.fromEntries(short));
  };
  const focused = () => {
    let element = document.activeElement;
    while (element && element.shadowRoot && element.shadowRoot.activeElement)
      element = element.shadowRoot.activeElement;
    return element;
  };
  const redo = (event, data) => {
    event.preventDefault();
    event.stopImmediatePropagation();
    const clipboardData = new DataTransfer();
    for (const [type, text] of Object.entries(data)) clipboardData.setData(type, text);
    const options = {clipboardData, bubbles: true, cancelable: true, composed: true};
    const isFree = event.composedPath()[0].dispatchEvent(new ClipboardEvent(event.type, options));
    return isFree ? null : clipboardData;
  };
  const selected = () => {
    const text = getSelection().toString();
    if (!text || (focused() && focused().type === 'password')) return null;
    if (/^(input|textarea)$/.test(focused() && focused().localName)) return {'text/plain': text};
    const box = document.createElement('div');
    box.append(getSelection().getRangeAt(0).cloneContents());
    return {'text/plain': text, 'text/html': box.innerHTML};
  };
  const copy = (event) => {
    if (!event.isTrusted) return;
    let data = selected();
    const own = redo(event, {});
    if (own) {
      data = Object.fromEntries([...own.types].map((type) => [type, own.getData(type)]));
    } else if (event.type === 'cut') {
      if (!data || !document.queryCommandEnabled('delete')) return;
      document.execCommand('delete');
    }
    if (data) keep(data);
  };
  const paste = (event) => {
    if (!event.isTrusted) return;
    const data = JSON.parse(home()[TO_PASTE] || home()[COPIED] || '{}');
    if (redo(event, data)) return;
    const html = focused() && focused().isContentEditable && data['text/html'];
    if (html) document.execCommand('insertHTML', false, html);
    else if (data['text/plain']) document.execCommand('insertText', false, data['text/plain']);
  };
  addEventListener('copy', copy, true);
  addEventListener('cut', copy, true);
  addEventListener('paste', paste, true);
  if (window.Clipboard) Clipboard.prototype.writeText = async (text) => keep({'text/plain': text});
})();
