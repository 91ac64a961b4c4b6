//! A decomposition as one page of HTML that needs nothing else: how the fit grew, the weights, each component's columns, and how similar
//! components are. Drawings are SVG; there is no script.
//!
//! Of a mode whose labels are a range or a cycle all of a column is drawn as a line, of a short mode without labels (at most 64 rows)
//! as bars; of others the numbers of largest magnitude are listed, with their labels or indices from 1.

use super::components::ShownMode;
use crate::decomp::score::similarities;
use crate::decomp::{Iteration, Model};
use crate::dense::{Matrix, Real};
use std::fmt::Display;

/// Modes of at most this many rows are drawn completely.
const SHORT_ROWS: usize = 64;
/// Components whose columns are shown unasked.
const OPEN: usize = 8;
/// Components that are shown; the others are in components.csv.
const SHOWN: usize = 128;
/// The similarity of at most this many components is drawn.
const SIMILAR: usize = 256;
/// Drawings' width.
const WIDTH: f64 = 640.0;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #667; --line: #d0d4da; --paper: #fff; --mark: #0b62c4; --less: #c4560b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #9aa3ad; --line: #3a4149; --paper: #15181c; --mark: #5aa9ff; --less: #ff9a4d; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1000px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; overflow-wrap: anywhere; } h2 { font-size: 1.15em; margin-top: 2em; } h3 { font-size: 1em; margin: 0.6em 0 0.2em; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.1em 1.2em; } dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
.point { fill: var(--ink); fill-opacity: 0; } .point:hover { fill-opacity: 0.12; } h3 small { color: var(--soft); font-weight: normal; }
@media (max-width: 600px) { .mode th { max-width: 11em !important; } .mode td.bar div { width: calc(var(--w) * 0.3px); } }
.mode { min-width: 0; max-width: 100%; overflow-x: auto; } .mode th { text-align: left; max-width: 22em; overflow: hidden; text-overflow: ellipsis; color: var(--ink); }
.axis { stroke: var(--line); } .curve { fill: none; stroke: var(--mark); stroke-width: 2; } .dot, .more { fill: var(--mark); } .less { fill: var(--less); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } td, th { padding: 0 0.7em 0 0; text-align: right; white-space: nowrap; font-weight: normal; }
th { color: var(--soft); } td.bar { text-align: left; } td.bar div { width: calc(var(--w) * 0.6px); height: 0.7em; background: var(--mark); } td.bar div.less { background: var(--less); }
details { border-top: 1px solid var(--line); padding: 0.4em 0; } summary { cursor: pointer; } .modes { display: flex; flex-wrap: wrap; gap: 0 2.5em; }
footer { color: var(--soft); margin: 3em 0 1em; }
";

const FIT: &str = "Fit is 1 minus the length of what the model leaves over, relative to the tensor's length: 1 reproduces \
                   every cell, 0 is no better than an empty model. Cells that are not in the file count as zeros.";
const COLUMNS: &str = "A component is the product of one column for each mode, times its weight. Columns have length one: a number \
                       says how strongly a label takes part. Point at a drawing for its numbers.";

/// A number for people: as it is where that is short, with an exponent where it is very large or small.
pub fn number(x: f64) -> String {
    let size = x.abs();
    if size == 0.0 || (1e-4..1e7).contains(&size) { format!("{x:.5}") } else { format!("{x:.4e}") }
}

/// The page of `model` under this title, with facts, each with its name, and the iterations that it took.
pub fn html<T: Real>(
    title: &str,
    facts: &[(&str, String)],
    iterations: &[Iteration],
    model: &Model<T>,
    modes: &[ShownMode],
) -> String {
    let title = escaped(title);
    let fact =
        |(name, value): &(&str, String)| format!("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(value));
    let facts: String = facts.iter().map(fact).collect();
    let lambda = model.lambda.data();
    let weights = lambda.iter().enumerate().map(|(r, &x)| ((r + 1).to_string(), x));
    let weights = table(weights, lambda.iter().copied().fold(0.0, f64::max));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<dl>\n{facts}</dl>\n<h2>Fit</h2>\n<p>{FIT}</p>\n{}\
         <h2>Components</h2>\n<p>{COLUMNS}</p>\n{}<h2>Weights</h2>\n{weights}<h2>Similarity of components</h2>\n\
         <p>The product over the modes of the cosines between two components' columns, without signs. Pairs near 1 \
         describe the same part of the tensor: a smaller rank may do.</p>\n{}<footer>blco {}</footer>\n</body>\n</html>\n",
        fit_curve(iterations),
        components(model, modes),
        similarity(model),
        env!("CARGO_PKG_VERSION"),
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The beginning of a drawing `about` something.
fn svg(width: f64, height: f64, about: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {width:.1} {height:.1}\" width=\"{width:.1}\" role=\"img\" aria-label=\"{about}\">\n"
    )
}

/// Text of a drawing whose `anchor`, its start, middle or end, is at `x`.
fn label(x: f64, y: f64, anchor: &str, text: impl Display) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n")
}

/// A level line.
fn level(x: f64, end: f64, y: f64) -> String {
    format!("<line class=\"axis\" x1=\"{x:.1}\" y1=\"{y:.2}\" x2=\"{end:.1}\" y2=\"{y:.2}\"/>\n")
}

/// A rectangle with these attributes, at `x` and `y`, that says `title` when it is pointed at.
fn rectangle(attributes: &str, [x, y, width, height]: [f64; 4], title: &str) -> String {
    format!(
        "<rect {attributes} x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\"><title>{title}</title></rect>\n"
    )
}

/// The fit of each iteration.
fn fit_curve(iterations: &[Iteration]) -> String {
    let (left, above, height) = (70.0, 12.0, 220.0);
    if iterations.is_empty() {
        return "<p>No iteration was made.</p>\n".into();
    }
    let fits = iterations.iter().map(|i| i.fit);
    let (low, high) = fits.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), f| (l.min(f), h.max(f)));
    let (low, high) = if high > low { (low, high) } else { (low - 0.5, low + 0.5) };
    let last = iterations.len().max(2) as f64;
    let x = |number: usize| left + (number as f64 - 1.0) / (last - 1.0) * (WIDTH - left - 20.0);
    let y = |fit: f64| above + (high - fit) / (high - low) * height;
    let bottom = above + height;
    let mut out = svg(WIDTH, bottom + 40.0, "fit by iteration");
    for step in 0..=4 {
        let fit = low + (high - low) * f64::from(step) / 4.0;
        out += &level(left, WIDTH, y(fit));
        out += &label(left - 8.0, y(fit) + 4.0, "end", format_args!("{fit:.5}"));
    }
    for i in iterations.iter().step_by(iterations.len().div_ceil(10)) {
        out += &label(x(i.iteration), bottom + 18.0, "middle", i.iteration);
    }
    out += &label(WIDTH, bottom + 36.0, "end", "iteration");
    let point = |i: &Iteration| format!("{:.1},{:.1}", x(i.iteration), y(i.fit));
    let points: Vec<String> = iterations.iter().map(point).collect();
    let dot = |i: &Iteration| {
        let Iteration { iteration, fit, change, seconds, .. } = i;
        let title = format!("iteration {iteration}: fit {fit:.8}, change {change:.2e}, {seconds:.4} s");
        let (x, y) = (x(*iteration), y(*fit));
        format!("<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"><title>{title}</title></circle>\n")
    };
    let dots: String = iterations.iter().map(dot).collect();
    format!("{out}<polyline class=\"curve\" points=\"{}\"/>\n{dots}</svg>\n", points.join(" "))
}

/// A table of numbers by what they are of, each with a bar of its size relative to `largest`.
fn table(numbers: impl Iterator<Item = (String, f64)>, largest: f64) -> String {
    let row = |(name, x): (String, f64)| {
        let pixels = if largest > 0.0 { 200.0 * x.abs() / largest } else { 0.0 };
        let class = if x < 0.0 { " class=\"less\"" } else { "" };
        let bar = format!("<div{class} style=\"--w:{pixels:.0}\"></div>");
        format!("<tr><th>{}</th><td>{}</td><td class=\"bar\">{bar}</td></tr>\n", label_cell(&name), number(x))
    };
    let rows: String = numbers.map(row).collect();
    format!("<table>\n{rows}</table>\n")
}

/// A label for people: cut where it is long, its whole text where it is pointed at.
fn label_cell(label: &str) -> String {
    const SHOWN: usize = 48;
    let short: String = label.chars().take(SHOWN).collect();
    match short.len() < label.len() {
        _ if label.is_empty() => "(empty)".into(),
        true => {
            let title: String = label.chars().take(1000).collect();
            format!("<span title=\"{}\">{}…</span>", escaped(&title), escaped(&short))
        }
        false => escaped(label),
    }
}

/// Column `r` of an ordered mode as a line over its whole range. Of many rows, the number of largest magnitude of each of
/// some stretches.
fn line<T: Real>(mode: &ShownMode, factor: &Matrix<T>, r: usize) -> String {
    const POINTS: usize = 320;
    let (width, height, left) = (420.0, 110.0, 4.0);
    let stretch = factor.rows().div_ceil(POINTS);
    let peak = |first: usize| {
        let rows = first..(first + stretch).min(factor.rows());
        let numbers = rows.map(|row| (row, factor.row(row)[r].widen()));
        numbers.reduce(|a, b| if b.1.abs() > a.1.abs() { b } else { a }).unwrap_or((first, 0.0))
    };
    let points: Vec<(usize, f64)> = (0..factor.rows()).step_by(stretch).map(peak).collect();
    let (low, high) = points.iter().fold((0.0f64, 0.0f64), |(l, h), &(_, x)| (l.min(x), h.max(x)));
    let span = if high > low { high - low } else { 1.0 };
    let step = (width - 2.0 * left) / (points.len().max(2) - 1) as f64;
    let x = |at: usize| left + at as f64 * step;
    let y = |value: f64| 6.0 + (high - value) / span * height;
    let curve: Vec<String> =
        points.iter().enumerate().map(|(at, &(_, value))| format!("{:.1},{:.1}", x(at), y(value))).collect();
    let area = |(at, &(row, value)): (usize, &(usize, f64))| {
        let title = format!("{}: {}", escaped(&mode.label(row)), number(value));
        rectangle("class=\"point\"", [x(at) - step / 2.0, 0.0, step, height + 12.0], &title)
    };
    let areas: String = points.iter().enumerate().map(area).collect();
    let shown = |row: usize| escaped(&mode.label(row));
    let last = factor.rows() - 1;
    let mut ends = label(0.0, height + 28.0, "start", shown(0));
    if last > 0 {
        ends += &label(width, height + 28.0, "end", shown(last));
    }
    if last > 1 {
        ends += &label(width / 2.0, height + 28.0, "middle", shown(points[points.len() / 2].0));
    }
    let about = format!("{} by {}", "loading", escaped(&mode.title));
    svg(width, height + 34.0, &about)
        + &level(0.0, width, y(0.0))
        + &format!("<polyline class=\"curve\" points=\"{}\"/>\n", curve.join(" "))
        + &areas
        + &ends
        + "</svg>\n"
}

fn components<T: Real>(model: &Model<T>, modes: &[ShownMode]) -> String {
    let component = |(r, weight): (usize, &f64)| {
        let mode = |(mode, factor): (usize, &Matrix<T>)| {
            let shown = &modes[mode];
            let column = if shown.is_line {
                line(shown, factor, r)
            } else if !shown.has_labels && factor.rows() <= SHORT_ROWS {
                whole(factor, r)
            } else {
                let top = &shown.tops[r];
                table(
                    top.iter().map(|&(row, x)| (shown.label(row), x)),
                    top.first().map_or(0.0, |top| top.1.abs()),
                )
            };
            let (what, rows) = (if shown.has_labels { "labels" } else { "rows" }, factor.rows());
            format!(
                "<div class=\"mode\"><h3>{} <small>{rows} {what}</small></h3>\n{column}</div>\n",
                escaped(&shown.title)
            )
        };
        let modes: String = model.factors.iter().enumerate().map(mode).collect();
        let (open, name) = (if r < OPEN { " open" } else { "" }, r + 1);
        let weight = number(*weight);
        format!(
            "<details{open}><summary>Component {name}, weight {weight}</summary>\n<div class=\"modes\">\n{modes}</div></details>\n"
        )
    };
    let (lambda, rank) = (model.lambda.data(), model.lambda.rows());
    let more = if rank > SHOWN {
        format!("<p>The {} others are in components.csv.</p>\n", rank - SHOWN)
    } else {
        String::new()
    };
    lambda.iter().take(SHOWN).enumerate().map(component).collect::<String>() + &more
}

/// All of column `r`, as bars from a line of zero.
fn whole<T: Real>(factor: &Matrix<T>, r: usize) -> String {
    const HEIGHT: f64 = 90.0;
    let column: Vec<f64> = (0..factor.rows()).map(|row| factor.row(row)[r].widen()).collect();
    let (low, high) = column.iter().fold((0.0f64, 0.0f64), |(l, h), &x| (l.min(x), h.max(x)));
    let span = if high > low { high - low } else { 1.0 };
    let step = (320.0 / column.len() as f64).min(24.0);
    let (width, zero) = (step * column.len() as f64, high / span * HEIGHT);
    let bar = |(row, &x): (usize, &f64)| {
        let size = x.abs() / span * HEIGHT;
        let (class, above) = if x < 0.0 { ("less", zero) } else { ("more", zero - size) };
        let title = format!("{}: {}", row + 1, number(x));
        rectangle(&format!("class=\"{class}\""), [row as f64 * step, above, step * 0.8, size], &title)
    };
    let bars: String = column.iter().enumerate().map(bar).collect();
    let ends = label(0.0, HEIGHT + 15.0, "start", 1) + &label(width, HEIGHT + 15.0, "end", column.len());
    svg(width, HEIGHT + 18.0, "a column") + &bars + &level(0.0, width, zero) + &ends + "</svg>\n"
}

fn similarity<T: Real>(model: &Model<T>) -> String {
    let rank = model.lambda.rows();
    if rank > SIMILAR {
        return format!("<p>Not drawn of more than {SIMILAR} components.</p>\n");
    }
    let margin = 30.0;
    let cell = ((WIDTH - 40.0) / rank as f64).min(36.0);
    let (side, at) = (margin + cell * rank as f64, |k: usize| margin + k as f64 * cell);
    let mut out = svg(side, side, "similarity of components");
    for r in (0..rank).step_by(rank.div_ceil(32)) {
        let middle = at(r) + 0.5 * cell;
        out += &label(middle, margin - 8.0, "middle", r + 1);
        out += &label(margin - 6.0, middle + 4.0, "end", r + 1);
    }
    for (i, score) in similarities(model, model, false).into_iter().enumerate() {
        let (r, q) = (i / rank, i % rank);
        let title = format!("{} and {}: {score:.4}", r + 1, q + 1);
        let shade = format!("class=\"more\" fill-opacity=\"{score:.3}\"");
        out += &rectangle(&shade, [at(q), at(r), cell, cell], &title);
    }
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model<f64> {
        let numbers = |rows: usize| (0..rows * 2).map(|i| ((i * 7919 % 101) as f64 - 50.0) / 50.0).collect();
        let factors = [100, 5].map(|rows| Matrix::from_rows(rows, 2, numbers(rows))).to_vec();
        Model { lambda: Matrix::from_rows(2, 1, vec![3.0, 0.0]), factors }
    }

    fn modes() -> Vec<ShownMode> {
        let model = model();
        let mode = |(at, factor): (usize, &Matrix<f64>)| ShownMode {
            title: format!("<mode> & {at}"),
            name: at.to_string(),
            is_line: at == 1,
            has_labels: at == 0,
            tops: super::super::components::tops(factor, 10),
            labels: std::iter::once((1, "a \"<b>\" & c".repeat(9))).collect(),
        };
        model.factors.iter().enumerate().map(mode).collect()
    }

    #[test]
    fn numbers_are_short() {
        for (x, wanted) in [(0.0, "0.00000"), (-2.5, "-2.50000"), (1e-150, "1.0000e-150"), (3e7, "3.0000e7")]
        {
            assert_eq!(number(x), wanted);
        }
    }

    /// Every element that is opened is closed, names are escaped, nothing is not a number, nothing is loaded.
    #[test]
    fn a_page_is_well_formed() {
        for iterations in [0, 1, 30] {
            let history: Vec<Iteration> = (1..=iterations)
                .map(|iteration| {
                    let fit = 1.0 - 1.0 / iteration as f64;
                    Iteration { iteration, fit, change: 0.1, seconds: 0.1, ..Iteration::default() }
                })
                .collect();
            let facts = [("store", "a<b>&c.blco".to_owned())];
            let page = html("CP", &facts, &history, &model(), &modes());
            assert!(page.contains("a&lt;b&gt;&amp;c.blco") && !page.contains("NaN") && !page.contains("inf"));
            assert!(!page.contains("http") && !page.contains("<script") && !page.contains("src="));
            for tag in [
                "html", "head", "style", "title", "body", "dl", "dt", "dd", "svg", "table", "tr", "td", "th",
                "div", "details", "summary", "text", "rect",
            ] {
                let opened =
                    page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
                assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
            }
        }
    }
}
