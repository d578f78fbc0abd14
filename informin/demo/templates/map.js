// Shows the sentence of the dot nearest to the pointer. Arrow keys go from dot to dot, from left to right.
const map = element.querySelector(".map");
const svg = map.querySelector("svg");
const dots = [...svg.querySelectorAll("circle")];
const places = dots.map((dot) => [dot.cx.baseVal.value, dot.cy.baseVal.value]);
const caption = element.querySelector(".map-caption");
const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 50, PageUp: -50 };
let shown = -1;

function show(next) {
  if (next === shown) return;
  if (shown >= 0) dots[shown].classList.remove("shown");
  shown = next;
  dots[shown].classList.add("shown");
  caption.textContent = dots[shown].textContent;
}

function nearest(event) {
  const box = svg.getBoundingClientRect();
  const scale = svg.viewBox.baseVal.width / box.width;
  const x = (event.clientX - box.left) * scale;
  const y = (event.clientY - box.top) * scale;
  let best = -1;
  let smallest = 400;
  places.forEach(([cx, cy], i) => {
    const distance = (cx - x) ** 2 + (cy - y) ** 2;
    if (distance < smallest) [best, smallest] = [i, distance];
  });
  return best;
}

for (const kind of ["pointermove", "pointerdown"]) {
  svg.addEventListener(kind, (event) => {
    const next = nearest(event);
    if (next >= 0) show(next);
  });
}
map.addEventListener("keydown", (event) => {
  if (!(event.key in steps)) return;
  event.preventDefault();
  show(Math.min(Math.max(shown + steps[event.key], 0), dots.length - 1));
});
