// A <select> opens a window of its own, which a headless browser draws into screenshots but which
// no click reaches. While its list is open it is therefore a customizable select: the browser
// draws the same list into the page, above everything else. There focus moves from option to
// option; that is hidden from the page, which sees the events that it sees of any list.
(() => {
  const OPENING = 'awrl-opening', SHOWN = `select:is([${OPENING}], :open)`;
  const KEPT = ['background', 'border', 'border-radius', 'color', 'font', 'letter-spacing', 'margin'];
  const TYPES = ['blur', 'click', 'focus', 'focusin', 'focusout', 'keydown', 'keypress', 'keyup',
    'mousedown', 'mouseup', 'pointerdown', 'pointerup'];
  const sheet = new CSSStyleSheet();
  let opened = null, chose = false;

  const opens = (event) => event.isTrusted && (event.type === 'mousedown' ? event.button === 0
    : event.type === 'keydown' && ([' ', 'Enter', 'F4'].includes(event.key) ||
      event.altKey && ['ArrowDown', 'ArrowUp'].includes(event.key)));

  const style = (select) => {
    const now = getComputedStyle(select), box = select.getBoundingClientRect();
    const isTight = Math.max(box.top, innerHeight - box.bottom) < 60;  // a low frame: list over all
    return `@layer awrl-select {
      ${SHOWN} { ${KEPT.map((name) => `${name}:${now[name]}!important`).join(';')};
        appearance:base-select!important; align-items:center!important;
        box-sizing:border-box!important; min-width:0!important; min-height:0!important;
        width:${select.offsetWidth}px!important; height:${select.offsetHeight}px!important;
        padding:0 ${now.paddingRight} 0 calc(4px + ${now.paddingLeft})!important }
      ${SHOWN}::picker(select) { appearance:base-select!important; padding:0; border-radius:0;
        border:1px solid #767676; background:#fff; color:#000; cursor:default;
        ${isTight ? 'position-area:none; inset:0 auto auto 0; max-height:100vh' : ''} }
      ${SHOWN} :is(option, optgroup) { font-family:Arial,sans-serif!important;
        font-size:11px!important }
      ${SHOWN} option { min-height:13px!important; padding:1px 4px!important; white-space:pre }
      ${SHOWN} optgroup option { text-indent:12px }
      ${SHOWN} option::checkmark { display:none }
      ${SHOWN} option:checked { background:#cfe3ff }
      ${SHOWN} option:is(:hover, :focus):enabled { background:#1967d2!important;
        color:#fff!important; outline:none }
    }`;
  };

  const prepare = (select) => {
    if (select.hasAttribute(OPENING)) return;
    const root = select.getRootNode(), isOwn = getComputedStyle(select).appearance === 'base-select';
    const hasChoice = select.querySelector('option:enabled:not([hidden])') !== null;
    const isOurs = !isOwn && !select.multiple && select.size <= 1 && !select.disabled && hasChoice;
    sheet.replaceSync(isOurs ? style(select) : '');
    if (!isOurs) return;
    if (!root.adoptedStyleSheets.includes(sheet)) root.adoptedStyleSheets.push(sheet);
    if (root !== document) listen(root);  // focus that moves within a shadow tree stays in it
    [opened, chose] = [select, false];
    select.setAttribute(OPENING, '');
    setTimeout(() => select.removeAttribute(OPENING));
  };

  const send = (Type, type, more = {}) =>
    opened.dispatchEvent(new Type(type, {bubbles: true, composed: true, ...more}));

  // A calendar is a window too, and takes keys only: a click or a space does not open it, so that
  // what is typed goes to the field. F4 and Alt with an arrow do.
  const hasCalendar = (e) => e instanceof HTMLInputElement &&
    ['date', 'datetime-local', 'month', 'time', 'week'].includes(e.type);

  const onEvent = (event) => {
    const target = event.composedPath()[0], other = event.relatedTarget;
    if (hasCalendar(target) && (event.type === 'click' || event.key === ' ')) {
      event.preventDefault();
      if (event.isTrusted && event.offsetX > target.clientWidth - 24) {  // its button has the focus
        target.blur();
        target.focus();
      }
    }
    if (target instanceof HTMLSelectElement && opens(event) && !target.matches(':open')) prepare(target);
    if (!opened || !event.isTrusted || !opened.contains(target)) return;
    const isWithin = opened.contains(other);
    if (target === opened) {
      if (!isWithin) return;
      if (event.type === 'focus' && chose) send(MouseEvent, 'click', {cancelable: true, view: window});
    } else {
      if (['mousedown', 'keydown'].includes(event.type))
        chose = target.matches('option:enabled') &&
          (event.button === 0 || ['Enter', ' ', 'Tab'].includes(event.key));
      const isTab = event.type === 'keydown' && event.key === 'Tab' && target instanceof HTMLOptionElement;
      if (isTab && target.index !== opened.selectedIndex) {
        opened.selectedIndex = target.index;
        send(Event, 'input');
        send(Event, 'change', {composed: false});
      }
      if (event instanceof FocusEvent && !isWithin)
        send(FocusEvent, event.type, {bubbles: event.bubbles, relatedTarget: other});
    }
    event.stopImmediatePropagation();
  };
  const listen = (place) => TYPES.forEach((type) => place.addEventListener(type, onEvent, true));
  listen(window);
  new MutationObserver(() => listen(window)).observe(document, {childList: true});  // document.open

  const {attachShadow} = Element.prototype, {showPicker} = HTMLSelectElement.prototype;
  const {showPicker: showWindow} = HTMLInputElement.prototype;
  const closedRoots = new WeakMap();  // for what looks for the elements of a page
  Object.defineProperty(window, Symbol.for('awrl-closed-roots'), {value: closedRoots});
  Element.prototype.attachShadow = function (init) {
    const root = attachShadow.call(this, init);
    if (root.mode === 'closed') {
      listen(root);
      closedRoots.set(this, root);
    }
    return root;
  };
  HTMLSelectElement.prototype.showPicker = function () {
    prepare(this);
    return showPicker.call(this);
  };
  HTMLInputElement.prototype.showPicker = function () {
    return hasCalendar(this) ? undefined : showWindow.call(this);
  };
})();
