// One version, or what differs between two, in the sheet over the table. All text is set as text, never as HTML.

const sheet = document.getElementById("sheet");
const compare = document.getElementById("compare");
const COLOURS = 6; // of layers, in the style

function make(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const heading = (...parts) => make("h2", { id: "heading", tabIndex: -1 }, ...parts);
const section = (title, ...children) => make("section", {}, make("h3", { textContent: title }), ...children);
const when = (stamp) => `${stamp.slice(0, 16).replace("T", " ")} UTC`;
const link = (to, text, className = "") => make("a", { href: `#${new URLSearchParams(to)}`, textContent: text, className });

function list(entries, className = "") {
  const told = entries.filter(([, value]) => value);
  return make("dl", { className }, ...told.map(([key, value]) => make("div", {}, make("dt", {}, key), make("dd", {}, value))));
}

/** A table; a cell is text or an element, and the first one is the head of its line. */
function table(caption, head, lines) {
  const cells = (line) => line.map((cell, at) => make(at ? "td" : "th", at ? {} : { scope: "row" }, cell));
  return make("table", {},
    make("caption", { className: "unseen", textContent: caption }),
    make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...lines.map((line) => make("tr", {}, ...cells(line)))));
}

function word(text) {
  return make("span", { className: text, textContent: text });
}

/** A command line with a button that copies it; without the clipboard (plain http) by way of a selection. */
function command(text) {
  const button = make("button", { type: "button", textContent: "Copy", ariaLive: "polite" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      getSelection().selectAllChildren(shown);
      if (!document.execCommand("copy")) return;
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  const shown = make("pre", { textContent: text });
  return make("div", { className: "command" }, shown, button);
}

function layers(version) {
  const whole = version.layers.reduce((sum, [, size]) => sum + size, 0);
  const share = (size) => (whole ? `${((100 * size) / whole).toFixed(1)} %` : "");
  const colour = (at) => `part-${(at % COLOURS) + 1}`;
  const bar = make("div", { className: "bar", ariaHidden: "true" }, ...version.layers.map(([name, size, told], at) => {
    const part = make("span", { className: colour(at), title: `${name}, ${told}` });
    part.style.flexGrow = size;
    return part;
  }));
  const lines = version.layers.map(([name, size, told], at) =>
    [make("span", {}, make("span", { className: `swatch ${colour(at)}` }), name), told, share(size)]);
  const merged = version.flat ? [make("p", { className: "soft", textContent: "Merged into one file system." })] : [];
  return section("Layers", bar, table("Layers, from the base upwards", ["Layer", "Size", "Share"], lines), ...merged);
}

function packageList(version) {
  if (version.problem) return section("Packages", make("p", { className: "problem" }, version.problem));
  const held = version.packages.map((at) => packages[at]);
  const kinds = [...new Set(held.map(([kind]) => kind))].map((kind) => `${held.filter(([one]) => one === kind).length} ${kind}`);
  const shown = table("Packages", ["Package", "Version", "Kind"], held.map(([kind, name, number]) => [name, number, kind]));
  const search = make("input", { type: "search", placeholder: "Find a package", ariaLabel: "Find a package" });
  search.addEventListener("input", () => {
    held.forEach(([, name], at) => { shown.tBodies[0].rows[at].hidden = !plain(name).includes(plain(search.value.trim())); });
  });
  const frame = make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Packages" }, shown);
  return section(`Packages: ${kinds.join(", ") || "none"}`, search, frame);
}

function title(version) {
  const badge = (channel) => {
    const made = make("span", { className: "badge", textContent: channel });
    made.dataset.channel = channel;
    return made;
  };
  const number = make("span", { className: "version", textContent: version.version });
  return heading(`${version.name} `, number, ...version.channels.map(badge));
}

/** What a node must have, as [[what, value]]. */
function needs({ arch, software, requires }) {
  const older = requires.older_drivers.length ? `; on data-centre GPUs also ${requires.older_drivers.join(", ")}` : "";
  return [
    ["Fits", software.cuda ? `${arch}, GPUs ${requires.gpus.join(" ")}`.trim() : `${arch}, no GPU needed`],
    ["Driver", requires.driver && `${requires.driver} or newer${older}`],
    ["Compiled for", requires.arch.join(" ")],
  ];
}

function details(version) {
  const before = versions[versions.indexOf(version) + 1];
  const between = before?.name === version.name && { old: reference(before), new: reference(version) };
  const [run, plainly] = version.commands;
  const tests = version.tests.map(([name, outcome, note]) => [name, word(outcome), note]);
  const known = [["Base", version.base.reference], ["Base digest", version.base.digest], ["Licences", version.licenses]];
  return [
    title(version),
    make("p", { className: "soft" }, version.description),
    list([
      ["Published", version.published && when(version.published)], ["Size", version.size], ...needs(version),
      ["Signed", version.signed ? "yes" : "no"], ["Digest", make("code", {}, version.digest)], ["Changes", between && link(between, `since ${before.version}`)],
    ]),
    section("Run it", command(run), make("p", { className: "soft" }, "Or without ctrain, on one node:"), command(plainly)),
    section("Software", list(Object.entries(version.software), "tiles")),
    layers(version),
    section("Tests", table("Tests", ["Test", "Result", ""], tests)),
    packageList(version),
    section("Origin", list([
      ...known, ["Built", when(version.built)], ["Definitions", version.revision ?? ""],
      ["With", Object.entries(version.tools).map((tool) => tool.join(" ")).join(", ")], ...Object.entries(version.labels),
    ])),
  ];
}

/** A table of what differs between two versions, of which `of` makes maps: name -> [what is shown, what is compared]. */
function changes(old, fresh, of, withSame = false) {
  const [before, after] = [of(old), of(fresh)];
  const kind = (key) => {
    if (!before.has(key)) return "added";
    if (!after.has(key)) return "removed";
    return before.get(key).at(-1) === after.get(key).at(-1) ? "same" : "changed";
  };
  const names = [...new Set([...after.keys(), ...before.keys()])].map((key) => [key, kind(key)]);
  const lines = names.filter(([, one]) => withSame || one !== "same");
  const told = ["added", "removed", "changed"].map((one) => `${lines.filter(([, other]) => other === one).length} ${one}`);
  const cells = lines.map(([key, one]) => [key, before.get(key)?.[0] ?? "", after.get(key)?.[0] ?? "", word(one)]);
  const made = table("Changes", ["", old.version, fresh.version, ""], cells);
  made.className = "changes";
  return [`: ${told.join(", ")}`, lines.length ? made : ""];
}

function differences(old, fresh) {
  const facts = (version) => new Map([
    ["Size", version.size], ...Object.entries(version.software), ["Base", version.base.reference],
    ["Base digest", version.base.digest.slice(0, 19)], ...needs(version),
  ].filter(([, value]) => value).map(([key, value]) => [key, [value]]));
  const parts = (version) => new Map(version.layers.map(([name, , told, id]) => [name, [told, id]]));
  const held = (version) => new Map(version.packages.map((at) => [`${packages[at][1]} (${packages[at][0]})`, [packages[at][2]]]));
  const broken = [old, fresh].filter(({ problem }) => problem);
  const problems = broken.map(({ problem }) => make("p", { className: "problem" }, problem));
  const [told, lines] = problems.length ? ["", ""] : changes(old, fresh, held);
  return [
    heading("What changed"),
    make("p", {}, link({ image: reference(old) }, reference(old)), " → ", link({ image: reference(fresh) }, reference(fresh))),
    section("Software and needs", changes(old, fresh, facts)[1] || "the same"),
    section("Layers", changes(old, fresh, parts, true)[1]),
    section(`Packages${told}`, ...problems, lines),
  ];
}

/** Show what the address asks for in the sheet, or close it. */
function showSheet(told) {
  const wanted = [told.image, told.old, told.new].filter(Boolean);
  if (!wanted.length) {
    sheet.close();
    return;
  }
  const [one, other] = wanted.map((name) => byReference.get(name));
  const missing = wanted.find((name) => !byReference.has(name));
  const content = missing ? [heading("Not in this catalogue"), make("p", { textContent: missing })]
    : other ? differences(one, other) : details(one);
  sheet.querySelector("article").replaceChildren(...content);
  if (!sheet.open) sheet.showModal();
  sheet.scrollTop = 0;
  document.getElementById("heading").focus();
}

/** Two versions that are ticked can be compared; a third takes the place of the one that was ticked first. */
const picked = [];
function pick({ target }) {
  if (target.type !== "checkbox") return;
  if (target.checked) picked.push(target);
  else picked.splice(picked.indexOf(target), 1);
  if (picked.length > 2) picked.shift().checked = false;
  const chosen = picked.map(({ value }) => byReference.get(value));
  chosen.sort((one, other) => (one.published ?? "").localeCompare(other.published ?? ""));
  const [old, fresh] = chosen.map(reference);
  compare.hidden = !old;
  compare.replaceChildren(...(fresh
    ? [`${old} → ${fresh}`, link({ old, new: fresh }, "Compare", "button")]
    : [`${old ?? ""}: choose another to compare it with`]));
}

document.getElementById("versions").addEventListener("change", pick);
document.getElementById("close").addEventListener("click", () => sheet.close());
sheet.addEventListener("click", (event) => event.target === sheet && sheet.close());
sheet.addEventListener("close", () => go({ image: "", old: "", new: "" }, true));
document.addEventListener("click", (event) => {
  const to = event.target.closest("a")?.hash;
  if (!to || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault(); // the address keeps what is searched for
  go({ image: "", old: "", new: "", ...Object.fromEntries(new URLSearchParams(to.slice(1))) });
});
start();
show();
