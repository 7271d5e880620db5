// Numbers every element that can be clicked and returns the list; CLEAR removes the numbers.
(() => {
  const HOST = 'awrl-marks';
  document.querySelectorAll(HOST).forEach((e) => e.remove());
  if (CLEAR) return [];
  const wanted = 'a[href],button,input:not([type=hidden]),select,textarea,summary,label,option,' +
    '[onclick],[contenteditable=""],[contenteditable=true],[tabindex]:not([tabindex="-1"]),' +
    '[role=button],[role=link],[role=checkbox],[role=radio],[role=tab],[role=menuitem],' +
    '[role=option],[role=switch]';
  const clickable = (e) => e.matches(wanted) || (getComputedStyle(e).cursor === 'pointer' &&
    !(e.parentElement && getComputedStyle(e.parentElement).cursor === 'pointer'));
  // A point of the element that nothing covers: its middle, or a corner of its inner half.
  const point = (e, r) => [[0.5, 0.5], [0.25, 0.25], [0.75, 0.25], [0.25, 0.75], [0.75, 0.75]]
    .map(([i, j]) => [r.left + r.width * i, r.top + r.height * j])
    .find(([x, y]) => { const h = document.elementFromPoint(x, y); return h && (h === e || e.contains(h)); });
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    if (found.length >= 200) break;
    if (!clickable(e)) continue;
    const r = e.getClientRects()[0];
    if (!r || r.width < 4 || r.height < 4) continue;
    const at = point(e, r);
    if (at) found.push({e, r, at});
  }
  found.sort((a, b) => a.r.top - b.r.top || a.r.left - b.r.left);
  const host = document.createElement(HOST);
  const root = host.attachShadow({mode: 'closed'});
  const colors = ['#d00', '#06c', '#080', '#a0a', '#b60'];
  const marks = found.map(({e, r, at}, index) => {
    const color = colors[index % colors.length];
    const box = document.createElement('div');
    box.style.cssText = 'position:fixed;pointer-events:none;box-sizing:border-box;' +
      `z-index:2147483647;border:1px solid ${color};left:${r.left}px;top:${r.top}px;` +
      `width:${r.width}px;height:${r.height}px`;
    const label = document.createElement('div');
    label.textContent = String(index + 1);
    label.style.cssText = `position:absolute;left:0;top:0;background:${color};color:#fff;` +
      'font:bold 9px/10px Arial,sans-serif;padding:0 1px';
    box.appendChild(label);
    root.appendChild(box);
    const text = (e.getAttribute('aria-label') || e.innerText || e.value || e.placeholder || '')
      .trim().replace(/\s+/g, ' ').slice(0, 80);
    return {number: index + 1, x: at[0], y: at[1], text: `${e.localName}: ${text}`};
  });
  document.documentElement.appendChild(host);
  return marks;
})()
