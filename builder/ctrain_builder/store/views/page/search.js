"use strict";

// The table: what is searched for and filtered, kept in the address so that it can be sent to a colleague.

const { packages, versions } = JSON.parse(document.getElementById("data").textContent);
const reference = (version) => `${version.name}:${version.version}`;
const byReference = new Map(versions.map((version) => [reference(version), version]));
const form = document.getElementById("filters");
const counter = document.getElementById("count");
const all = counter.textContent;
const rows = document.querySelectorAll("#versions tbody tr"); // one for each version, in the same order
const NONE = "none";
const FILTERS = {
  channel: (version) => version.channels,
  torch: (version) => [(version.software.torch ?? NONE).split("+")[0]],
  cuda: (version) => [version.software.cuda ?? NONE],
  gpu: (version) => version.requires.gpus,
};
const CONTROLS = ["q", ...Object.keys(FILTERS)];
const KEYS = [...CONTROLS, "image", "old", "new"];

/** What the address says: a string for each of KEYS. */
function state() {
  const told = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(KEYS.map((key) => [key, told.get(key) ?? ""]));
}

/** Change the address and show what it says. `replace`: the browser's way back leaves this step out. */
function go(change, replace = false) {
  const told = Object.entries({ ...state(), ...change }).filter(([, value]) => value);
  history[replace ? "replaceState" : "pushState"](null, "", `#${new URLSearchParams(told)}`);
  show();
}

/** Package names are equal when they differ in case and kind of hyphens only, as Python has it. */
const plain = (name) => name.toLowerCase().replace(/[-_.]+/g, "-");
const plainNames = packages.map(([, name]) => plain(name));
const known = new Set(plainNames);
for (const { name, software } of versions) {
  for (const each of [name, ...Object.keys(software)]) known.add(plain(each));
}
const texts = versions.map((version) =>
  [
    ...[version.name, version.version, version.digest, version.arch, version.base.reference, version.description],
    ...[...version.channels, ...version.requires.gpus, ...version.layers.map(([name]) => name)],
    ...Object.entries(version.software).flat(),
  ].join("\n").toLowerCase(),
);

/** The words of a search; a number belongs to the name before it, as in "deepspeed 0.19". */
function terms(text) {
  const found = [];
  for (const word of text.toLowerCase().replaceAll("sha256:", "").split(/[\s,=:@]+/).filter(Boolean)) {
    const last = found.at(-1);
    if (/^\d/.test(word) && last && !last.number && !/^\d/.test(last.name)) last.number = word;
    else found.push({ name: word, number: "" });
  }
  return found;
}

/** Whether a version begins with this number: 2.1 begins 2.1.3, but not 2.13. */
function begins(version, number) {
  const text = version.toLowerCase();
  return text.startsWith(number) && !(/\d$/.test(number) && /^\d/.test(text.slice(number.length)));
}

/** A function for one term: what of a version (by its place) fits it, as text; null if nothing does. */
function finder({ name, number }) {
  const wanted = plain(name);
  const fits = known.has(wanted) ? (one) => one === wanted : (one) => one.includes(wanted);
  const parts = new Set(plainNames.flatMap((one, at) => (fits(one) && begins(packages[at][2], number) ? [at] : [])));
  return (place) => {
    const version = versions[place];
    const software = Object.entries(version.software).filter(([one, told]) => fits(plain(one)) && begins(told, number));
    const held = version.packages.filter((at) => parts.has(at)).map((at) => packages[at].slice(1));
    const found = [...software, ...held].map((pair) => pair.join(" "));
    const itself = number ? fits(plain(version.name)) && begins(version.version, number) : texts[place].includes(name);
    return found.length || itself ? found : null;
  };
}

/** Hide the rows of versions that don't fit, and say in the others what does. */
function filter(told) {
  const finders = terms(told.q).map(finder);
  const active = Object.entries(FILTERS).filter(([key]) => told[key]);
  let shown = 0;
  versions.forEach((version, place) => {
    const found = finders.map((find) => find(place));
    const fits = found.every(Boolean) && active.every(([key, values]) => values(version).includes(told[key]));
    rows[place].hidden = !fits;
    rows[place].querySelector(".found").textContent = fits ? [...new Set(found.flat())].slice(0, 4).join(" · ") : "";
    shown += fits;
  });
  counter.textContent = shown === versions.length ? all : `${shown || "none"} of ${all}`;
}

function show() {
  const told = state();
  for (const key of CONTROLS) {
    if (form.elements[key].value !== told[key]) form.elements[key].value = told[key]; // else the cursor would jump
  }
  filter(told);
  showSheet(told);
}

function start() {
  for (const [key, values] of Object.entries(FILTERS)) {
    const every = [...new Set(versions.flatMap(values))];
    every.sort((one, other) => (one === NONE) - (other === NONE) || other.localeCompare(one, "en", { numeric: true }));
    form.elements[key].append(...every.map((value) => new Option(value)));
  }
  form.addEventListener("input", (event) => go({ [event.target.id]: event.target.value }, true));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => go(Object.fromEntries(CONTROLS.map((key) => [key, ""]))));
  addEventListener("hashchange", show);
  document.documentElement.classList.add("live");
  form.hidden = false;
}
