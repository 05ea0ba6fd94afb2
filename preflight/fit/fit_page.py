"""The page of ``fit --format html``: the sizes, and how the memory and its tokens are divided."""

from checks.base.units import format_bytes
from checks.capture.secrets import public
from preflight.fit.divisions import Division
from preflight.fit.fit_launch import Fitted
from preflight.fit.report import WORDS, division_table, fit_text, size_rows
from preflight.inputs.host_source import Sized
from preflight.pictures.check_page import page_style
from preflight.pictures.hit_curve import trace_parts
from preflight.pictures.memory_figures import BAR_HEIGHT, memory_figure
from preflight.pictures.memory_map import launch_takes, memory_map
from preflight.render.html_page import Html, element, join, page, table

# The colour of each tier: those of its memory in the picture of the memory.
_COLOURS = {"L1": "k-other", "L2": "k-l2", "L3": "k-segment"}
_STATUS = {0: "pass", 1: "warn", 2: "fail", 3: "unknown"}
_TEXT_COLUMNS = 100


def fit_page(answer: Fitted) -> str:
    """Return the whole document: tables and pictures, then all that the text says."""
    text = fit_text(answer, lambda shown, colour: shown, _TEXT_COLUMNS)
    verdict = text.partition("\n\n")[0].replace("\n", " ")
    status = _STATUS[answer.exit_code]
    parts = [
        element("h1", answer.launch),
        element("section", element("strong", verdict), class_=f"verdict {status}"),
    ]
    fits, answered = answer.answer.fits, answer.answered
    if fits is not None:
        heads = ["size", "now", "fits", "that is"]
        parts.append(table(heads, size_rows(answer), caption="Sizes", numeric_columns=(1, 2)))
        sized = Sized(fits.sizing, fits.needs, None, answer.state.launch, answer.state.options)
        memory = memory_figure(memory_map(fits.facts, launch_takes(sized)))
        parts += [element("h2", "Memory by tier, once the plan is applied"), memory]
    if answered is not None:
        heads, rows = division_table(answered, answer.first)
        numbers = range(1, len(heads))
        shown = [each for each in answered.tried if not (answer.first and each.about == "now")]
        most = max((tokens for each in shown for _, tokens in each.held), default=0) or 1
        parts += [
            element("h2", "Tokens by tier"),
            element("p", answered.what),
            *(_division(division, most) for division in shown),
            table(heads, rows, caption="Divisions, the best first", numeric_columns=numbers),
        ]
        if answered.chosen is not None and answered.answer is not None:
            parts += trace_parts(answered.chosen, answered.answer)
    parts += [element("h2", "The whole answer"), element("pre", public(text))]
    title = f"{WORDS[answer.exit_code]}: {answer.launch}"
    return page(title, join(parts, "\n"), style=page_style()).rstrip("\n")


def _division(division: Division, most: int) -> Html:
    """Draw the tokens of each tier of one division; ``most`` fills the width."""
    memory = f"L2 {format_bytes(division.values.l2_bytes or 0)} each rank"
    head = f"{division.about}: {memory}, segment {format_bytes(division.values.segment_bytes or 0)}"
    bars = []
    for name, tokens in division.held:
        label = {"role": "img", "aria_label": f"{division.about} {name}: {tokens:,} tokens"}
        width = f"{tokens * 100 / most:.4f}%"
        colour = _COLOURS.get(name, "k-buffer")
        shape = element("rect", x=0, y=0, width=width, height=BAR_HEIGHT // 2, class_=colour)
        drawn = element("svg", shape, width="100%", height=BAR_HEIGHT // 2, **label)
        text = element("span", f"{name} {tokens:,}", class_="small muted")
        bars.append(element("div", text, drawn, class_="bar"))
    return element("div", element("h3", head), *bars, class_="place")
