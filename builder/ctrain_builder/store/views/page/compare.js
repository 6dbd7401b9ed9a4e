// What differs between two versions; and the sheet, which shows that or one of them.

const sheet = document.getElementById("sheet");
const chosen = document.getElementById("chosen");
const picked = []; // check boxes that are ticked, in this order

/** What differs, as a table, and the numbers. `of` makes maps of a version: name -> [what to show, what to compare]. */
function changes(old, fresh, of, withSame = false) {
  const [before, after] = [of(old), of(fresh)];
  const kind = (key) => {
    if (!before.has(key)) return "added";
    if (!after.has(key)) return "removed";
    return before.get(key).at(-1) === after.get(key).at(-1) ? "same" : "changed";
  };
  const every = [...new Set([...after.keys(), ...before.keys()])].map((key) => [key, kind(key)]);
  const lines = every.filter(([, one]) => withSame || one !== "same");
  const number = (one) => `${lines.filter((line) => line[1] === one).length} ${one}`;
  const cells = lines.map(([key, one]) => [key, before.get(key)?.[0] ?? "", after.get(key)?.[0] ?? "", word(one)]);
  const shown = table("Changes", ["", old.version, fresh.version, ""], cells);
  shown.className = "changes";
  return [["added", "removed", "changed"].map(number).join(", "), lines.length ? shown : "the same"];
}

/** What is not a package or a layer: name -> [value]. */
function facts(version) {
  const told = [
    ["Size", version.size],
    ...Object.entries(version.software),
    ["Base", version.base.reference],
    ["Base digest", version.base.digest.slice(0, 19)],
    ...needs(version),
  ];
  return new Map(told.filter(([, value]) => value).map(([key, value]) => [key, [value]]));
}

function differences(old, fresh) {
  const parts = (version) => new Map(version.layers.map(([name, , told, id]) => [name, [told, id]]));
  const named = ([kind, name, number]) => [`${name} (${kind})`, [number]];
  const held = (version) => new Map(version.packages.map((at) => named(packages[at])));
  const to = (version) => link({ image: reference(version) }, reference(version));
  const problems = [old, fresh].filter((version) => version.problem).map(problem);
  const [numbers, lines] = changes(old, fresh, held);
  return [
    heading("What changed"),
    make("p", {}, to(old), " → ", to(fresh)),
    section("Software and needs", changes(old, fresh, facts)[1]),
    section("Layers", changes(old, fresh, parts, true)[1]),
    problems.length ? section("Packages", ...problems) : section(`Packages: ${numbers}`, lines),
  ];
}

/** Show what the address asks for in the sheet, or close it. */
function showSheet(told) {
  const wanted = [told.image, told.old, told.new].filter(Boolean);
  if (!wanted.length) {
    sheet.close();
    return;
  }
  const missing = wanted.filter((name) => !byReference.has(name));
  const [one, other] = wanted.map((name) => byReference.get(name));
  const content = missing.length ? [heading("Not in this catalogue"), missing.join(", ")]
    : other ? differences(one, other) : details(one);
  sheet.querySelector("article").replaceChildren(...content);
  if (!sheet.open) sheet.showModal();
  sheet.scrollTop = 0;
  document.getElementById("heading").focus();
}

/** Two versions that are ticked can be compared; a third takes the place of the one that was ticked first. */
function pick({ target }) {
  if (target.checked) picked.push(target);
  else picked.splice(picked.indexOf(target), 1);
  if (picked.length > 2) picked.shift().checked = false;
  const pair = picked.map(({ value }) => byReference.get(value));
  const age = ({ published }) => published ?? "";
  pair.sort((one, other) => age(one).localeCompare(age(other)) || versions.indexOf(other) - versions.indexOf(one));
  const [old, fresh] = pair.map(reference);
  chosen.hidden = !old;
  chosen.replaceChildren(...(fresh
    ? [`${old} → ${fresh}`, link({ old, new: fresh }, "Compare", "button")]
    : [`${old}: choose another to compare it with`]));
}

document.getElementById("versions").addEventListener("change", pick);
document.getElementById("close").addEventListener("click", () => sheet.close());
sheet.addEventListener("click", (event) => event.target === sheet && sheet.close()); // beside its content
sheet.addEventListener("close", () => go({ image: "", old: "", new: "" }, true));
document.addEventListener("click", (event) => {
  const to = event.target.closest("a")?.hash;
  if (!to || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault(); // the address keeps what is searched for
  go({ image: "", old: "", new: "", ...Object.fromEntries(new URLSearchParams(to.slice(1))) });
});
start();
show();
