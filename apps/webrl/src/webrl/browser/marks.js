// Numbers every element that can be clicked and returns the list, or removes the numbers.
(() => {
  POINTS
  const HOST = 'awrl-marks';
  document.querySelectorAll(HOST).forEach((e) => e.remove());
  if (CLEAR) return [];
  const ROLES = 'button,checkbox,combobox,gridcell,link,menuitem,menuitemcheckbox,menuitemradio,' +
    'option,radio,searchbox,slider,spinbutton,switch,tab,textbox,treeitem';
  const WANTED = 'a[href],area[href],button,input:not([type=hidden]),select,textarea,summary,label,' +
    'option,video,audio[controls],embed,object,[contenteditable]:not([contenteditable=false]),' +
    '[draggable=true],[tabindex]:not([tabindex="-1"]),' +
    ROLES.split(',').map((role) => `[role=${role}]`).join();
  const PRESSES = ['click', 'dblclick', 'mousedown', 'mouseup', 'pointerdown', 'pointerup',
    'touchstart', 'touchend'];
  const isPointer = (e) => getComputedStyle(e).cursor === 'pointer';
  const isListened = (e) => {
    const added = typeof getEventListeners === 'function' ? getEventListeners(e) : {};
    return PRESSES.some((type) => added[type] || e[`on${type}`]);
  };
  const scrolls = (e) => (e.scrollHeight > e.clientHeight + 1 || e.scrollWidth > e.clientWidth + 1) &&
    /auto|scroll/.test(getComputedStyle(e).overflow);

  const LISTS = 'ul,ol,dl,menu,table,tbody,form,svg';
  const isEntry = (e) => e.matches('li') && isListened(e.parentElement) ||
    e.matches('td') && ['tbody', 'table'].some((around) => e.closest(around) && isListened(e.closest(around)));

  // Why an element is wanted: a `part` is one thing to a person. A `pane` scrolls, listens for its
  // entries, or holds another page: it needs a number where nothing in it has one. A `whole`
  // listens for what it holds: it is one thing unless it has numbers in it and fills the page.
  const kind = (e) => {
    if (['html', 'head'].includes(e.localName)) return null;
    if (e.localName === 'body') return isListened(e) ? 'pane' : null;
    if (e.matches(WANTED) || isPointer(e) && !(above(e) && isPointer(above(e)))) return 'part';
    if (isEntry(e)) return 'part';
    if (['iframe', 'frame'].includes(e.localName) || scrolls(e)) return 'pane';
    return isListened(e) ? (e.matches(LISTS) ? 'pane' : 'whole') : null;
  };
  const wanted = new Map();
  for (const [e, view] of everything()) {
    try {
      const found = kind(e);
      if (found) wanted.set(e, {e, view, kind: found});
    } catch { /* an odd element costs its own number only */ }
  }
  const owner = (e) => { while (e && !wanted.has(e)) e = above(e); return e; };
  // Where the click goes: the number becomes a point of the actions' grid, rounded as Python does.
  const even = (v) => Math.abs(v % 1) === 0.5 ? 2 * Math.round(v / 2) : Math.round(v);
  const snap = (v, size) => Math.min(even(v * GRID / size) * size / GRID, size - 0.5);
  const holders = new Set();
  const found = [];
  for (const {e, view, kind} of wanted.values()) {
    if (found.length >= 200) break;
    try {
      const at = point(e, view, (x, y) => owner(hit(snap(x, innerWidth), snap(y, innerHeight))) === e);
      if (!at) continue;
      found.push({e, at, kind});
      for (let a = above(e); a; a = above(a)) holders.add(a);
    } catch { /* the same */ }
  }
  const isNeeded = ({e, at, kind}) => kind === 'part' || !holders.has(e) ||
    kind === 'whole' && at.width * at.height < innerWidth * innerHeight / 2;
  const shown = found.filter(isNeeded);
  shown.sort((a, b) => a.at.top - b.at.top || a.at.left - b.at.left);

  // What is never told: passwords, one-time codes, cards, and all that the page shows as dots.
  const SECRET = /(^|\s)(cc-\S+|one-time-code|(current|new)-password)(\s|$)/i;
  const isMasked = (e) => getComputedStyle(e).webkitTextSecurity !== 'none';
  const isSecret = (e) => e.type === 'password' || isMasked(e) ||
    SECRET.test(e.getAttribute('autocomplete') || '');
  const read = (e) => Array.from(e.querySelectorAll('*')).some((p) => !p.matches('input') && isMasked(p))
    ? '' : e.innerText ?? e.textContent;
  const value = (e) => e.localName === 'select' ? Array.from(e.selectedOptions, (o) => o.label).join(', ')
    : e.matches('[type=checkbox],[type=radio]') ? '' : e.value;
  const around = (e) => [...(shadow(e) ? shadow(e).children : []),
    ...Array.from(e.querySelectorAll('slot'), (slot) => slot.assignedNodes()).flat()];
  const said = (e) => isSecret(e) ? '' : e.matches('input,textarea,select') ? value(e)
    : read(e) || around(e).map((n) => n.innerText ?? n.textContent).join(' ');
  const NAMES = [
    (e) => e.getAttribute('aria-label'),
    (e) => (e.getAttribute('aria-labelledby') || '').split(/\s+/).filter(Boolean)
      .map((id) => e.getRootNode().getElementById(id)?.innerText).join(' '),
    said, (e) => e.placeholder, (e) => e.labels?.[0]?.innerText, (e) => e.title || e.alt,
    (e) => { const p = e.querySelector('[alt],[aria-label],title');
      return p && (p.getAttribute('alt') || p.getAttribute('aria-label') || p.textContent); },
  ];
  const text = (e) => {
    for (const name of NAMES) {
      let words = '';
      try { words = String(name(e) ?? '').trim().replace(/\s+/g, ' '); } catch { /* the same */ }
      if (words) return words.slice(0, 80);
    }
    return '';
  };

  // A popover of the page would stand above all else that is drawn: so do the numbers.
  const create = (name) => document.createElementNS('http://www.w3.org/1999/xhtml', name);
  const host = create(HOST);
  host.popover = 'manual';
  host.style.cssText = 'all:initial!important;position:fixed!important;inset:0!important;' +
    'display:block!important;pointer-events:none!important;overflow:hidden!important';
  const root = host.attachShadow({mode: 'closed'});
  const colors = ['#d00', '#06c', '#080', '#a0a', '#b60'];
  const marks = shown.map(({e, at}, index) => {
    const color = colors[index % colors.length];
    const box = create('div');
    box.style.cssText = 'position:fixed;box-sizing:border-box;' +
      `border:1px solid ${color};left:${at.left}px;top:${at.top}px;` +
      `width:${at.width}px;height:${at.height}px`;
    const label = create('div');
    label.textContent = String(index + 1);
    label.style.cssText = `position:absolute;left:0;top:0;background:${color};color:#fff;` +
      'font:bold 9px/10px Arial,sans-serif;padding:0 1px';
    box.appendChild(label);
    root.appendChild(box);
    return {number: index + 1, x: at.x, y: at.y, text: `${e.localName}: ${text(e)}`};
  });
  document.documentElement.appendChild(host);
  host.showPopover();
  return marks;
})()
