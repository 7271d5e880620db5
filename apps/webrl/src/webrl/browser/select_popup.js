// A <select> opens a window of its own, which a headless browser draws into screenshots but which
// no click reaches. This draws the list into the page instead, where clicks work.
(() => {
  const HOST = 'awrl-select-list';
  const close = () => document.querySelectorAll(HOST).forEach((e) => e.remove());
  const open = (select) => {
    const box = select.getBoundingClientRect();
    const host = document.createElement(HOST);
    const root = host.attachShadow({mode: 'closed'});
    const list = document.createElement('div');
    const below = innerHeight - box.bottom, above = box.top;
    const up = below < 60 && above > below;
    list.style.cssText =
      'position:fixed;z-index:2147483647;background:#fff;color:#000;border:1px solid #767676;' +
      'font:11px Arial,sans-serif;overflow-y:auto;box-sizing:border-box;cursor:default;' +
      `left:${box.left}px;min-width:${box.width}px;max-height:${Math.max(up ? above : below, 40)}px;` +
      (up ? `bottom:${innerHeight - box.top}px` : `top:${box.bottom}px`);
    Array.from(select.options).forEach((option, index) => {
      if (option.hidden) return;
      const row = document.createElement('div');
      row.textContent = option.label || ' ';
      row.style.cssText = 'padding:1px 4px;white-space:pre;min-height:13px;' +
        (option.disabled ? 'color:#999;' : '') +
        (index === select.selectedIndex ? 'background:#cfe3ff;' : '');
      row.addEventListener('mousedown', (event) => event.preventDefault());
      row.addEventListener('click', (event) => {
        event.stopPropagation();
        if (option.disabled) return;
        const changed = select.selectedIndex !== index;
        select.selectedIndex = index;
        close();
        if (!changed) return;
        select.dispatchEvent(new Event('input', {bubbles: true}));
        select.dispatchEvent(new Event('change', {bubbles: true}));
      });
      list.appendChild(row);
    });
    root.appendChild(list);
    document.documentElement.appendChild(host);
  };
  addEventListener('mousedown', (event) => {
    if (!event.isTrusted || event.button !== 0) return;
    const target = event.composedPath()[0];
    const inList = target instanceof Element && target.localName === HOST;
    const select = target instanceof Element ? target.closest('select') : null;
    const wasOpen = document.querySelector(HOST) !== null;
    if (!inList && !event.composedPath().some((e) => e.localName === HOST)) close();
    if (!select || select.multiple || select.size > 1 || select.disabled) return;
    event.preventDefault();
    select.focus();
    if (!wasOpen) open(select);
  }, true);
  addEventListener('scroll', close, true);
})();
