// One version, in the sheet over the table. All text is set as text, never as HTML.

const COLOURS = 6; // of layers, in the style

function make(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const heading = (...parts) => make("h2", { id: "heading", tabIndex: -1 }, ...parts);
const section = (title, ...children) => make("section", {}, make("h3", {}, title), ...children);
const link = (to, text, className = "") => make("a", { href: `#${new URLSearchParams(to)}`, className }, text);
const word = (text) => make("span", { className: text }, text); // passed, changed ...: its style has the same name
const problem = (version) => make("p", { className: "problem" }, version.problem);
const when = (stamp) => `${stamp.slice(0, 16).replace("T", " ")} UTC`;

function list(entries, className = "") {
  const told = entries.filter(([, value]) => value);
  const lines = told.map(([key, value]) => make("div", {}, make("dt", {}, key), make("dd", {}, value)));
  return make("dl", { className }, ...lines);
}

/** A table; a cell is text or an element, and the first one is the head of its line. */
function table(caption, head, lines) {
  const cells = (line) => line.map((cell, at) => make(at ? "td" : "th", at ? {} : { scope: "row" }, cell));
  return make("table", {},
    make("caption", { className: "unseen" }, caption),
    make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...lines.map((line) => make("tr", {}, ...cells(line)))));
}

/** A command line with a button that copies it; where there is no clipboard (plain http), by a selection. */
function command(text) {
  const shown = make("pre", {}, text);
  const button = make("button", { type: "button", ariaLive: "polite" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      getSelection().selectAllChildren(shown);
      if (!document.execCommand("copy")) return; // it is selected at least
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return make("div", { className: "command" }, shown, button);
}

function layers(version) {
  const whole = version.layers.reduce((sum, [, size]) => sum + size, 0);
  const colour = (at) => `part-${(at % COLOURS) + 1}`;
  const bar = make("div", { className: "bar", ariaHidden: "true" });
  const lines = version.layers.map(([name, size, told], at) => {
    const part = make("span", { className: colour(at), title: `${name}, ${told}` });
    part.style.flexGrow = size;
    bar.append(part);
    const swatch = make("span", { className: `swatch ${colour(at)}` });
    return [make("span", {}, swatch, name), told, whole ? `${((100 * size) / whole).toFixed(1)} %` : ""];
  });
  const merged = version.flat ? "Merged into one file system." : "";
  return section("Layers", bar, table("Layers, from the base upwards", ["Layer", "Size", "Share"], lines), merged);
}

function packageList(version) {
  if (version.problem) return section("Packages", problem(version));
  const lines = version.packages.map((at) => packages[at]).map(([kind, name, number]) => [name, number, kind]);
  const number = (kind) => lines.filter((line) => line[2] === kind).length;
  const kinds = [...new Set(lines.map((line) => line[2]))].map((kind) => `${number(kind)} ${kind}`);
  return section(`Packages: ${kinds.join(", ") || "none"}`, table("Packages", ["Package", "Version", "Kind"], lines));
}

/** What a node must have, as [what, value]. */
function needs({ arch, software, requires }) {
  const older = requires.older_drivers.join(", ");
  return [
    ["Fits", software.cuda ? `${arch}, GPUs ${requires.gpus.join(" ")}` : `${arch}, no GPU needed`],
    ["Driver", requires.driver && `${requires.driver} or newer${older && `; on data-centre GPUs also ${older}`}`],
    ["Compiled for", requires.arch.join(" ")],
  ];
}

function badge(channel) {
  const made = make("span", { className: "badge" }, channel);
  made.dataset.channel = channel;
  return made;
}

function details(version) {
  const before = versions[versions.indexOf(version) + 1]; // they are sorted: by name, then the newest first
  const between = before?.name === version.name && { old: reference(before), new: reference(version) };
  const [run, plainly] = version.commands;
  const tests = version.tests.map(([name, outcome, note]) => [name, word(outcome), note]);
  const number = make("span", { className: "version" }, version.version);
  const tools = Object.entries(version.tools).map((tool) => tool.join(" "));
  return [
    heading(`${version.name} `, number, ...version.channels.map(badge)),
    make("p", { className: "soft" }, version.description),
    list([
      ["Published", version.published && when(version.published)],
      ["Size", version.size],
      ...needs(version),
      ["Signed", version.signed ? "yes" : "no"],
      ["Scan", version.scan],
      ["Note", version.deprecated],
      ["Digest", make("code", {}, version.digest)],
      ["Changes", between && link(between, `since ${before.version}`)],
    ]),
    section("Run it", command(run), make("p", { className: "soft" }, "Without ctrain, on one node:"), command(plainly)),
    section("Software", list(Object.entries(version.software), "tiles")),
    layers(version),
    section("Tests", table("Tests", ["Test", "Result", "Took, or why not"], tests)),
    section("Origin", list([
      ["Base", version.base.reference],
      ["Base digest", version.base.digest && make("code", {}, version.base.digest)],
      ["Licences", version.licenses],
      ["Built", when(version.built)],
      ["Definitions", version.revision],
      ["With", tools.join(", ")],
      ...Object.entries(version.labels),
    ])),
    packageList(version),
  ];
}
