// Every page works without this: it adds keys, copying, and scrolling through records by number.

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  });
}

const follow = (relation) => document.querySelector(`a[rel="${relation}"]:not([hidden])`)?.click();

const keys = {
  ArrowLeft: () => follow("prev"),
  ArrowRight: () => follow("next"),
  g: () => document.querySelector("#goto")?.select(),
  u: () => (document.querySelector('a[rel="up"]') ?? [...document.querySelectorAll('nav[aria-label="Place"] a')].at(-1))?.click(),
};

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, audio");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
  event.preventDefault();
  keys[event.key]();
});

const grid = document.querySelector("#grid");
const slider = document.querySelector(".scroll");

if (grid && slider) {
  const { url } = grid.dataset;
  const count = Number(grid.dataset.count);
  const records = Number(grid.dataset.records);
  const last = Math.max(0, records - count);
  let start = Number(grid.dataset.start);
  let wanted = start;
  let loading = false;

  const place = (from) => `${url}?from=${from}&count=${count}`;

  const point = (relation, from, exists) => {
    const link = document.querySelector(`a[rel="${relation}"]`);
    if (link) {
      link.href = place(from);
      link.hidden = !exists;
    }
  };

  // What screen readers say of the slider.
  const describe = () => {
    const [from, to] = ["#from", "#to"].map((each) => document.querySelector(each).textContent);
    slider.setAttribute("aria-valuetext", `records ${from} to ${to}`);
  };

  const settle = () => {
    document.querySelector("#from").textContent = start.toLocaleString("en");
    document.querySelector("#to").textContent = (Math.min(start + count, records) - 1).toLocaleString("en");
    document.querySelector("#goto").value = start;
    slider.value = start;
    describe();
    point("prev", Math.max(0, start - count), start > 0);
    point("next", Math.min(start + count, Math.max(0, records - 1)), start + count < records);
    history.replaceState(null, "", place(start));
  };

  // One request at a time, always for the newest place: a fast scroll skips what nobody sees.
  const load = async () => {
    if (loading) return;
    loading = true;
    try {
      while (wanted !== start) {
        const target = wanted;
        const answer = await fetch(`${place(target)}&part=1`);
        if (!answer.ok) {
          location.assign(place(target));
          return;
        }
        grid.innerHTML = await answer.text();
        start = target;
        settle();
      }
    } catch {
      grid.textContent = "The server does not answer: start `cachelayer view` again.";
    } finally {
      loading = false;
    }
  };

  const scrollTo = (from) => {
    wanted = Math.min(Math.max(0, Math.round(from)), last);
    load();
  };

  slider.hidden = last === 0;
  describe();
  slider.addEventListener("input", () => scrollTo(Number(slider.value)));
  grid.addEventListener("wheel", (event) => {
    const down = event.deltaY > 0;
    const { top, bottom } = grid.getBoundingClientRect();
    // The page scrolls first; records follow at its end.
    if (event.ctrlKey || last === 0 || (down ? bottom > innerHeight : top < 0)) return;
    if (down ? wanted >= last : wanted <= 0) return;
    event.preventDefault();
    const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
    scrollTo(wanted + (down ? columns : -columns));
  }, { passive: false });
}
