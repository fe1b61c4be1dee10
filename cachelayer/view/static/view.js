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

// A clip comes as one picture of all frames, one below the other, once it is played.
const makePlayer = (clip) => {
  const frames = Number(clip.dataset.frames);
  const canvas = document.createElement("canvas");
  const button = document.createElement("button");
  const slider = document.createElement("input");
  const shown = document.createElement("output");
  const film = new Image();
  let timer = null;

  const draw = () => {
    const height = film.naturalHeight / frames;
    const frame = Number(slider.value);
    canvas.width = film.naturalWidth;
    canvas.height = height;
    canvas.getContext("2d").drawImage(film, 0, frame * height, canvas.width, height, 0, 0, canvas.width, height);
    shown.textContent = `frame ${frame + 1} of ${frames}`;
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    button.textContent = "Play";
  };
  const play = () => {
    button.textContent = "Pause";
    timer = setInterval(() => {
      slider.value = (Number(slider.value) + 1) % frames;
      draw();
    }, 100);
  };
  // The film is loaded once, when it is first played.
  const withFilm = async (then) => {
    film.src ||= clip.dataset.film;
    try {
      await film.decode();
      canvas.hidden = false;
      then();
    } catch {
      shown.textContent = "The clip cannot be read: reload this page, or start `cachelayer view` again.";
    }
  };

  button.type = "button";
  button.textContent = "Play";
  button.setAttribute("aria-label", `Play or pause ${clip.dataset.name}`);
  slider.type = "range";
  slider.max = frames - 1;
  slider.value = 0;
  slider.setAttribute("aria-label", `Frame of ${clip.dataset.name}`);
  canvas.hidden = true;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `The frame that is shown of ${clip.dataset.name}`);
  button.addEventListener("click", () => (timer === null ? withFilm(play) : stop()));
  slider.addEventListener("input", () => { stop(); withFilm(draw); });
  clip.append(canvas, button, slider, shown);
  clip.hidden = false;
};

document.querySelectorAll(".clip").forEach(makePlayer);

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
