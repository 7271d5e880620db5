// Where elements of a page can be hit: of the page itself, of shadow roots in it, and of frames
// that its scripts may read. A view is one document with its place in the viewport.
const TOP = {doc: document, x: 0, y: 0, sx: 1, sy: 1,
  clip: {left: 0, top: 0, right: innerWidth, bottom: innerHeight}};
const LATTICE = Array.from({length: 81}, (_, n) => [n % 9, Math.floor(n / 9)])
  .sort((a, b) => Math.hypot(a[0] - 4, a[1] - 4) - Math.hypot(b[0] - 4, b[1] - 4));
let testsLeft = 5000;  // a page of covered elements costs a bounded time

// The element around `e`: of its tree as drawn, then of the document that shows its frame.
const above = (e) => e.assignedSlot || e.parentElement || e.getRootNode().host ||
  (e.ownerDocument.defaultView && e.ownerDocument.defaultView.frameElement);
// Closed roots are remembered where the browser layer opened the page.
const shadow = (e) => e.shadowRoot ||
  e.ownerDocument.defaultView?.[Symbol.for('awrl-closed-roots')]?.get(e);
const overlap = (a, b) => ({left: Math.max(a.left, b.left), top: Math.max(a.top, b.top),
  right: Math.min(a.right, b.right), bottom: Math.min(a.bottom, b.bottom)});
const onScreen = (r, view) => ({left: view.x + r.left * view.sx, top: view.y + r.top * view.sy,
  right: view.x + r.right * view.sx, bottom: view.y + r.bottom * view.sy});
const isTurned = (e) => {
  for (let a = e; a; a = above(a)) {
    const style = getComputedStyle(a), m = new DOMMatrix(style.transform);
    if (style.rotate !== 'none' || m.b || m.c || m.a <= 0 || m.d <= 0 || !m.is2D) return true;
  }
  return false;
};

const clips = new Map();
// What the elements around `e` leave to be seen of it.
const clip = (e, view) => {
  const {position} = getComputedStyle(e);
  const a = position === 'fixed' ? null : position === 'absolute' ? e.offsetParent : above(e);
  if (!a || a.ownerDocument !== view.doc || a.localName === 'body') return view.clip;
  if (!clips.has(a)) {
    const outer = clip(a, view), cuts = getComputedStyle(a).overflow !== 'visible';
    clips.set(a, cuts ? overlap(outer, onScreen(a.getBoundingClientRect(), view)) : outer);
  }
  return clips.get(a);
};

const views = new Map();
// The document in frame `e` of `view`; none when scripts may not read it or it stands askew.
const inside = (e, view) => {
  if (!['iframe', 'frame', 'object', 'embed'].includes(e.localName)) return null;
  if (views.has(e)) return views.get(e);
  let doc = null;
  try { doc = e.contentDocument; } catch { /* another site's */ }
  if (!doc || !e.offsetWidth || !e.offsetHeight || isTurned(e)) doc = null;
  if (doc) {
    const r = e.getBoundingClientRect(), style = getComputedStyle(e);
    const sx = r.width / e.offsetWidth, sy = r.height / e.offsetHeight;
    const left = r.left + (e.clientLeft + parseFloat(style.paddingLeft)) * sx;
    const top = r.top + (e.clientTop + parseFloat(style.paddingTop)) * sy;
    const {innerWidth: width, innerHeight: height} = doc.defaultView;
    const box = onScreen({left, top, right: left + width * sx, bottom: top + height * sy}, view);
    doc = {doc, x: box.left, y: box.top, sx: sx * view.sx, sy: sy * view.sy,
      clip: overlap(box, clip(e, view))};
  }
  views.set(e, doc);
  return doc;
};

// Every element, each with its view, in document order.
function* everything(view = TOP, root = view.doc) {
  for (const e of root.querySelectorAll('*')) {
    yield [e, view];
    if (shadow(e)) yield* everything(view, shadow(e));
    const inner = inside(e, view);
    if (inner) yield* everything(inner);
  }
}

// The innermost element at a point of the viewport.
const hit = (x, y) => {
  let view = TOP, root = document, found = null;
  testsLeft -= 1;
  while (root) {
    const next = root.elementFromPoint((x - view.x) / view.sx, (y - view.y) / view.sy);
    if (!next || next.getRootNode() !== root) return found;
    found = next;
    const inner = inside(next, view);
    if (inner) view = inner;
    root = inner ? inner.doc : shadow(next);
  }
  return found;
};
const hits = (e, x, y) => {
  for (let a = hit(x, y); a; a = above(a)) if (a === e) return true;
  return false;
};

const areaBox = (area, image) => {
  const c = area.coords.split(/[\s,]+/).map(Number), r = image.getBoundingClientRect();
  if (area.shape === 'default') return r;
  if (/^circ/.test(area.shape))
    return new DOMRect(r.x + c[0] - c[2], r.y + c[1] - c[2], 2 * c[2], 2 * c[2]);
  const [xs, ys] = [0, 1].map((k) => c.filter((_, i) => i % 2 === k));
  const [x, y] = [Math.min(...xs), Math.min(...ys)];
  return new DOMRect(r.x + x, r.y + y, Math.max(...xs) - x, Math.max(...ys) - y);
};
// Boxes in which a click might meet `e`: its own; without one, those of what it holds, and of
// what its ::before and ::after may cover.
const boxes = (e) => {
  const some = (rects) => Array.from(rects).filter((r) => r.width > 1.5 && r.height > 1.5);
  if (e.localName === 'area') {
    const name = e.parentElement.name, images = e.getRootNode().querySelectorAll('img[usemap]');
    return Array.from(images).filter((i) => i.useMap === `#${name}`).map((i) => areaBox(e, i));
  }
  const own = some(e.getClientRects());
  if (own.length) return own;
  const range = e.ownerDocument.createRange();
  range.selectNodeContents(e);
  const parts = [range, ...e.querySelectorAll('*')].flatMap((part) => some(part.getClientRects()));
  const draws = ['::before', '::after'].some((p) => getComputedStyle(e, p).content !== 'none');
  return draws && e.offsetParent ? [...parts, ...some(e.offsetParent.getClientRects())] : parts;
};

// The point nearest to the middle of the first box of `e` that has a good one, with the box as far
// as it shows; none when there is no such point.
const point = (e, view = TOP, isGood = (x, y) => hits(e, x, y)) => {
  const limits = [...new Set([clip(e, view), view.clip])];
  for (const box of boxes(e)) for (const limit of limits) {
    const r = overlap(onScreen(box, view), limit);
    const width = r.right - r.left, height = r.bottom - r.top;
    if (width < 1.5 || height < 1.5) continue;
    for (const [i, j] of testsLeft > 0 ? LATTICE : LATTICE.slice(0, 1)) {
      const x = r.left + 0.5 + (width - 1) * i / 8, y = r.top + 0.5 + (height - 1) * j / 8;
      if (isGood(x, y)) return {x, y, left: r.left, top: r.top, width, height};
    }
  }
  return null;
};
