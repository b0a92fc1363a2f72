(function () {
  "use strict";
  var start = JSON.parse(document.getElementById("start").textContent);
  var form = document.getElementById("fields"), NS = "http://www.w3.org/2000/svg";
  var STAGES = ["coarse", "sketch", "refined"];
  var WORDS = { coarse: "refining …", sketch: "refining …", refined: "refined" };
  var tab = String(Math.random()).slice(2), turn = 0, flying = null, wanted = null, extra = [], held = null;
  var shownQuery = "", steps = [];

  function one(id) { return document.getElementById(id); }
  function input(name) { return form.querySelector('[data-name="' + name + '"]'); }
  function value(name) { var found = input(name); return found ? found.value.trim() : ""; }
  function set(name, text) { var found = input(name); if (found) { found.value = text; } }

  // The state of the fields as a query, in the words of the command line.

  var OWN = ["prompt-low", "prompt-high", "output-low", "output-high", "prefix", "ttft-limit", "tpot-limit"];

  function lengths() {
    function range(low, high) { return +high > +low ? low + ".." + high : low; }
    var prompt = value("prompt-low") || "512", output = value("output-low") || "128";
    var text = "prompt=" + range(prompt, value("prompt-high")) + ",output=" + range(output, value("output-high"));
    return +value("prefix") > 0 ? text + ",prefix=" + value("prefix") : text;
  }

  // What the policy has no setting for is left out, and stays in its field for the others.
  function lacks(name) { return (start.lacking[value("policy")] || []).indexOf(name) >= 0; }

  function query() {
    var asked = new URLSearchParams(), loop = one("f-loop").value;
    form.querySelectorAll("[data-name]").forEach(function (field) {
      var name = field.dataset.name, text = field.value.trim();
      if (OWN.indexOf(name) >= 0 || !text || (name === "rate" || name === "concurrency") && name !== loop) { return; }
      if (name === "burstiness" && loop !== "rate" || lacks(name)) { return; }
      if (name === "workload") { text = text === "own lengths" ? lengths() : text; }
      if (name === "set") { text.split(/\s+/).forEach(function (part) { asked.append("set", part); }); return; }
      asked.append(name, text);
    });
    if (!one("f-chunked").checked && !lacks("enable_chunked_prefill")) { asked.append("set", "enable_chunked_prefill=false"); }
    extra.forEach(function (pair) { asked.append(pair[0], pair[1]); });
    return asked.toString();
  }

  function option(name, text) {
    var select = input(name);
    if (text && !Array.from(select.options).some(function (known) { return known.value === text; })) {
      select.add(new Option(text, text));
    }
    select.value = text;
  }

  function workload(text) {
    var parts = /^prompt=(\d+)(?:\.\.(\d+))?,output=(\d+)(?:\.\.(\d+))?(?:,prefix=(\d+))?$/.exec(text) ||
      /^(\d+)()x(\d+)()()$/.exec(text);
    if (!parts) { option("workload", text); return; }
    option("workload", "own lengths");
    set("prompt-low", parts[1]); set("prompt-high", parts[2] || parts[1]);
    set("output-low", parts[3]); set("output-high", parts[4] || parts[3]); set("prefix", parts[5] || "");
  }

  // The other way: fields that have no place on the page are carried along.
  function fill(text) {
    var asked = new URLSearchParams(text), sets = [];
    form.querySelectorAll("[data-name]").forEach(function (field) { field.value = ""; });
    extra = [];
    one("f-chunked").checked = true;
    one("f-loop").value = asked.has("concurrency") ? "concurrency" : "rate";
    option("workload", "chat");
    asked.forEach(function (text, name) {
      if (name === "workload") { workload(text); return; }
      if (name === "set") {
        if (text === "enable_chunked_prefill=false") { one("f-chunked").checked = false; } else { sets.push(text); }
        return;
      }
      var field = input(name);
      if (!field) { extra.push([name, text]); } else if (field.tagName === "SELECT") { option(name, text); } else { field.value = text; }
    });
    set("set", sets.join(" "));
    limits();
    shape();
  }

  function limits() {
    ["ttft", "tpot"].forEach(function (name) {
      var found = new RegExp(name + "(?::| )p95 ?< ?([\\d.]+)(ms|s)").exec(value("slo"));
      set(name + "-limit", found ? String(found[1] * (found[2] === "s" ? 1000 : 1)) : "");
    });
  }

  function limited(name) {
    var text = value(name + "-limit"), slo = value("slo");
    var parts = slo ? slo.split(",").map(function (part) { return part.trim(); }) : [];
    parts = parts.filter(function (part) { return !new RegExp("^" + name + "(?::| )p95").test(part); });
    if (text) { parts.push(name + ":p95<" + text + "ms"); }
    set("slo", parts.join(", "));
  }

  // What is shown of the fields: sliders stand where their numbers are.

  function place(slider) {
    var field = input(slider.dataset.of), low = +slider.dataset.low, high = +slider.dataset.high;
    var text = field.value || field.placeholder, number = parseFloat(text);
    field.parentNode.classList.toggle("is-default", !field.value);
    if (isNaN(number)) { number = "log" in slider.dataset ? Math.sqrt(low * high) : (low + high) / 2; }
    var share = "log" in slider.dataset ? Math.log(Math.max(number, low) / low) / Math.log(high / low) : (number - low) / (high - low);
    slider.value = String(Math.round(1000 * Math.max(0, Math.min(1, share))));
    slider.setAttribute("aria-valuetext", field.value || "not set");
  }

  function slid(slider) {
    var low = +slider.dataset.low, high = +slider.dataset.high, share = slider.value / 1000;
    move(slider, "log" in slider.dataset ? low * Math.pow(high / low, share) : low + share * (high - low));
  }

  function move(slider, number) {
    var step = slider.dataset.step, field = input(slider.dataset.of);
    number = +Math.max(+slider.dataset.low, Math.min(+slider.dataset.high, number)).toPrecision(number >= 100 ? 3 : 2);
    if (step !== "any") { number = +(Math.round(number / step) * step).toFixed(4); }
    field.value = String(number);
    changed(field);
  }

  // A key moves to the next number that differs: by a tenth where the slider is logarithmic.
  var KEYS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 5, PageDown: -5 };
  form.addEventListener("keydown", function (event) {
    var slider = event.target, by = KEYS[event.key];
    if (slider.type !== "range" || !by) { return; }
    event.preventDefault();
    var low = +slider.dataset.low, high = +slider.dataset.high, share = slider.value / 1000, step = +slider.dataset.step || 0;
    var isLog = "log" in slider.dataset, number = parseFloat(input(slider.dataset.of).value);
    if (isNaN(number)) { number = isLog ? low * Math.pow(high / low, share) : low + share * (high - low); }
    var far = isLog ? number * Math.pow(1.1, by) - number : by * (high - low) / 50;
    move(slider, number + (Math.abs(far) < step ? Math.sign(by) * step : far));
    address(true);
  });

  function shape() {
    var loop = one("f-loop").value;
    ["rate", "concurrency", "burstiness"].forEach(function (name) {
      form.querySelector('[data-field="' + name + '"]').hidden = name === "concurrency" ? loop !== name : loop === "concurrency";
    });
    form.querySelectorAll("[data-field]").forEach(function (field) {
      var isLacking = lacks(field.dataset.field);
      field.title = isLacking ? value("policy") + " has no " + field.dataset.field : "";
      field.classList.toggle("is-lacking", isLacking);
      field.querySelectorAll("input").forEach(function (one) { one.disabled = isLacking; });
    });
    one("lengths").hidden = value("workload") !== "own lengths";
    form.querySelectorAll("input[type=range]").forEach(place);
  }

  function changed(field) {
    var name = field.dataset.name || "";
    if (name === "ttft-limit" || name === "tpot-limit") { limited(name.slice(0, 4)); }
    if (name === "slo") { limits(); }
    if (name === "workload" && value(name) === "own lengths" && !value("prompt-low")) { workload("prompt=256..2048,output=64..512"); }
    if (name === "prompt-low" && +value("prompt-high") < +field.value) { set("prompt-high", field.value); }
    if (name === "output-low" && +value("output-high") < +field.value) { set("output-high", field.value); }
    if (field.id === "f-loop" && !value(field.value)) { set(field.value, field.value === "rate" ? "10" : "32"); }
    shape();
    ask(query());
  }

  // Answers: coarse at once, then the curves, then all of it. The newest state alone is asked for.

  function said(text, state) {
    var place = one("state");
    if (place.textContent !== text) { place.textContent = text; }
    place.dataset.state = state;
  }

  function ask(text) {
    wanted = text;
    performance.mark("asked");
    said("refining …", "busy");
    if (flying && flying.stage !== "coarse") { flying.abort.abort(); flying = null; }
    if (!flying) { next("coarse"); }
  }

  function next(stage) {
    var mine = { stage: stage, query: wanted, abort: new AbortController() };
    flying = mine;
    turn += 1;
    answer(mine.query, stage, mine.abort.signal).then(function (found) {
      if (flying !== mine) { return; }
      flying = null;
      if (found.superseded) { return; }
      if (found.problem) { trouble(found.problem); } else { draw(found); }
      var rank = STAGES.indexOf(found.stage || stage);
      if (wanted !== mine.query) { next("coarse"); } else if (!found.problem && rank < STAGES.length - 1) { next(STAGES[rank + 1]); }
    }).catch(function (error) {
      if (flying === mine) { flying = null; }
      if (error.name === "AbortError") { return; }
      trouble("The server gives no answer: is it still running?");
    });
  }

  function answer(query, stage, signal) {
    if (start.grid) { return Promise.resolve(nearest(query)); }
    return fetch("answer", {
      method: "POST", signal: signal, headers: { "content-type": "application/json" },
      body: JSON.stringify({ query: query, stage: stage, tab: tab, turn: turn })
    }).then(function (reply) { return reply.json(); });
  }

  // A file has the answers of a grid: the state that differs in the fewest fields, and there the least.
  function nearest(text) {
    var asked = new URLSearchParams(text), best = null, least = Infinity;
    start.grid.forEach(function (found) {
      var other = new URLSearchParams(found.query), far = 0;
      new Set(Array.from(asked.keys()).concat(Array.from(other.keys()))).forEach(function (name) {
        var a = asked.getAll(name).join(" "), b = other.getAll(name).join(" ");
        if (a === b) { return; }
        far += a > 0 && b > 0 ? Math.min(Math.abs(Math.log(a / b)), 9) : 10;
      });
      if (far < least) { least = far; best = found; }
    });
    return least === 0 || best.query === wanted ? best : Object.assign({}, best, { note: "the nearest state of this file" });
  }

  function trouble(text) {
    one("problem").textContent = text;
    one("problem").hidden = false;
    one("shown").classList.add("is-stale");
    said("no answer", "bad");
  }

  function draw(found) {
    one("problem").hidden = true;
    one("shown").classList.remove("is-stale");
    one("head").innerHTML = found.head;
    one("lines").innerHTML = found.lines.replace(/^\s*<dl class="lines">|<\/dl>\s*$/g, "");
    one("command").textContent = found.command + " --json";
    document.querySelectorAll("[data-slot]").forEach(function (slot) {
      var drawn = found.figures[slot.dataset.slot];
      if (drawn) {
        var open = !!slot.querySelector("details[open]");
        slot.innerHTML = drawn;
        if (open) { slot.querySelector("details").open = true; }
        slot.dataset.state = "new";
        slot.hidden = false;
      } else if (found.stage === "refined") { slot.hidden = true; } else { slot.dataset.state = "old"; }
    });
    one("brief").textContent = one("answer-title").textContent.replace(/^.*?: /, "");
    document.title = one("answer-title").textContent + " – Inferometer";
    steps = found.stage === "refined" ? found.steps : steps;
    one("shown").dispatchEvent(new CustomEvent("drawn", { bubbles: true }));
    shownQuery = found.query;
    window.dispatchEvent(new CustomEvent("answered", { detail: { stage: found.stage, query: found.query } }));
    compare(found);
    step(+one("step").value);
    said(found.note || WORDS[found.stage], found.stage === "refined" ? "done" : "busy");
    performance.mark("drawn-" + found.stage);
    address(false);
  }

  function address(isNew) {
    if (start.grid) { return; }
    var text = "?" + (wanted || shownQuery) + (held ? "#a=" + encodeURIComponent(held.query) : "");
    if (location.search + location.hash !== text) { history[isNew ? "pushState" : "replaceState"](null, "", text); }
  }

  // A beside B.

  var now = null;
  function compare(found) {
    now = found || now;
    var beside = one("beside");
    document.querySelectorAll(".held").forEach(function (old) { old.remove(); });
    beside.hidden = !held;
    one("lock").setAttribute("aria-pressed", String(!!held));
    one("lock").textContent = held ? "Let A go" : "Hold this as A";
    if (!held || !now) { return; }
    beside.replaceChildren(table());
    document.querySelectorAll("[data-slot]").forEach(function (slot) {
      var drawn = held.figures[slot.dataset.slot];
      if (!drawn || slot.hidden) { return; }
      var old = document.createElement("div");
      old.className = "held";
      old.dataset.tag = "A, held";
      old.innerHTML = drawn.replace(/ id="[^"]*"/g, "");
      slot.appendChild(old);
    });
    one("shown").dispatchEvent(new CustomEvent("drawn", { bubbles: true }));
  }

  function table() {
    var made = document.createElement("table"), body = made.createTBody(), head = made.createTHead().insertRow();
    ["", "A, held", "B, now", "B against A"].forEach(function (text) {
      var cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = text;
      head.appendChild(cell);
    });
    now.numbers.forEach(function (number) {
      var other = held.numbers.find(function (a) { return a.name === number.name; });
      var row = body.insertRow(), size = { "µs": 1e-6, ms: 1e-3, s: 1 };
      var scale = other ? (size[number.unit] || 1) / (size[other.unit] || 1) : NaN;
      var ratio = other && other.value ? scale * number.value / other.value - 1 : NaN;
      function words(a) { return a ? a.text + " " + a.unit + " " + a.interval : "–"; }
      [number.name, words(other), words(number), isNaN(ratio) ? "–" : (ratio > 0 ? "+" : "") + (100 * ratio).toFixed(1) + " %"]
        .forEach(function (text, rank) { var cell = row.insertCell(); cell.textContent = text; if (rank === 3) { cell.className = "diff"; } });
    });
    return made;
  }

  one("lock").addEventListener("click", function () {
    held = held ? null : now;
    compare(null);
    address(true);
  });

  // The slots step by step: a column is marked in both timelines and read out.

  function step(place) {
    one("steps").hidden = !steps.length;
    if (!steps.length) { return; }
    var n = Math.max.apply(null, steps.map(function (one) { return one.slots.length ? one.slots[0].length : 0; }));
    place = Math.max(0, Math.min(n - 1, place));
    one("step").max = String(n - 1);
    one("step").value = String(place);
    one("step-words").textContent = steps.map(function (timeline) {
      var seen = { C: 0, g: 0, E: 0, "·": 0 };
      timeline.slots.forEach(function (row) { seen[row[place]] = (seen[row[place]] || 0) + 1; });
      return timeline.name + ", step " + (timeline.first + place) + ": " + seen.C + " context, " + seen.g + " generation, " + seen.E +
        " end, " + seen["·"] + " idle";
    }).join(" · ");
    steps.forEach(function (timeline, rank) {
      var inner = document.querySelector('[data-slot="slot-timeline-' + rank + '"] > .fig .in');
      if (!inner) { return; }
      var mark = inner.querySelector(".cursor") || inner.appendChild(document.createElementNS(NS, "rect"));
      mark.setAttribute("class", "cursor");
      mark.setAttribute("x", 100 * place / timeline.slots[0].length + "%");
      mark.setAttribute("width", 100 / timeline.slots[0].length + "%");
      mark.setAttribute("y", "0");
      mark.setAttribute("height", inner.getAttribute("height"));
    });
  }
  one("step").addEventListener("input", function () { step(+one("step").value); });
  document.querySelectorAll("[data-move]").forEach(function (button) {
    button.addEventListener("click", function () { step(+one("step").value + +button.dataset.move); });
  });

  // Copies, and a way back.

  function copy(text, what) {
    function done() { one("copied").textContent = what + " copied"; }
    if (navigator.clipboard) { navigator.clipboard.writeText(text).then(done, function () { one("copied").textContent = text; }); } else { one("copied").textContent = text; }
  }
  one("copy-link").addEventListener("click", function () { copy(location.href, "link"); });
  one("copy-command").addEventListener("click", function () { copy(one("command").textContent, "command"); });

  form.addEventListener("input", function (event) {
    if (event.target.type === "range") { slid(event.target); } else if (event.target.type !== "text") { changed(event.target); }
  });
  form.addEventListener("change", function (event) {
    if (event.target.type === "text") { changed(event.target); }
    address(true);
  });
  form.addEventListener("submit", function (event) { event.preventDefault(); });

  function arrive() {
    var text = location.search.slice(1) || start.query;
    fill(text);
    ask(query());
  }
  addEventListener("popstate", arrive);
  document.querySelectorAll(".try").forEach(function (link) {
    link.addEventListener("click", function (event) {
      event.preventDefault();
      fill(link.getAttribute("href").slice(1));
      ask(query());
      address(true);
      one("answer").scrollIntoView();
    });
  });

  // A state that was held comes with the address.
  var a = /^#a=(.*)$/.exec(location.hash);
  if (a && !start.grid) {
    answer(decodeURIComponent(a[1]), "refined", new AbortController().signal).then(function (found) {
      if (!found.problem) { held = found; }
      arrive();
    });
  } else { arrive(); }
})();
