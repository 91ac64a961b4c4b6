//! A decomposition as one page of HTML that needs nothing else: how the fit grew, the weights, each component's columns, and how similar
//! components are. Drawings are SVG; there is no script.
//!
//! Of a short mode (at most 64 rows) all of a column is drawn, of others the ten numbers of largest magnitude. Indices count from 1.

use super::score::similarities;
use super::{Iteration, Model};
use crate::dense::{Matrix, Real};
use std::fmt::Write;

/// Modes of up to so many rows are drawn whole.
const SHORT_ROWS: usize = 64;
/// Numbers that are listed of a column of any other mode.
const TOP: usize = 10;
/// Components whose columns are shown unasked.
const OPEN: usize = 8;
/// Drawings' width.
const WIDTH: f64 = 640.0;

/// What a page is made from.
#[derive(Debug)]
pub struct Page<'a, T> {
    /// The heading.
    pub title: &'a str,
    /// Facts, each with its name.
    pub facts: &'a [(&'a str, String)],
    /// The iterations of the model.
    pub iterations: &'a [Iteration],
    /// The model.
    pub model: &'a Model<T>,
}

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #667; --line: #d0d4da; --paper: #fff; --mark: #0b62c4; --less: #c4560b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #9aa3ad; --line: #3a4149; --paper: #15181c; --mark: #5aa9ff; --less: #ff9a4d; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1000px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; overflow-wrap: anywhere; } h2 { font-size: 1.15em; margin-top: 2em; } h3 { font-size: 1em; margin: 0.6em 0 0.2em; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.1em 1.2em; } dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
.axis { stroke: var(--line); } .curve { fill: none; stroke: var(--mark); stroke-width: 2; } .dot, .more { fill: var(--mark); } .less { fill: var(--less); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } td, th { padding: 0 0.7em 0 0; text-align: right; white-space: nowrap; font-weight: normal; }
th { color: var(--soft); } td.bar { text-align: left; } td.bar div { height: 0.7em; background: var(--mark); } td.bar div.less { background: var(--less); }
details { border-top: 1px solid var(--line); padding: 0.4em 0; } summary { cursor: pointer; } .modes { display: flex; flex-wrap: wrap; gap: 0 2.5em; }
footer { color: var(--soft); margin: 3em 0 1em; }
";

/// A number for people: as it is where that is short, with an exponent where it is very large or small.
#[must_use]
pub fn number(x: f64) -> String {
    let size = x.abs();
    if size == 0.0 || (1e-4..1e7).contains(&size) { format!("{x:.5}") } else { format!("{x:.4e}") }
}

/// The page.
#[must_use]
pub fn html<T: Real>(page: &Page<'_, T>) -> String {
    let title = escaped(page.title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<dl>\n"
    );
    for (name, value) in page.facts {
        add(&mut out, format_args!("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(value)));
    }
    out += "</dl>\n<h2>Fit</h2>\n";
    fit_curve(&mut out, page.iterations);
    out += "<h2>Weights</h2>\n";
    weights(&mut out, page.model.lambda.data());
    out += "<h2>Components</h2>\n<p>Columns have length one.</p>\n";
    components(&mut out, page.model);
    out += "<h2>Similarity of components</h2>\n<p>The product over the modes of the cosines between two components' columns, without signs. Pairs near 1 \
            describe the same part of the tensor: a smaller rank may do.</p>\n";
    similarity(&mut out, page.model);
    add(&mut out, format_args!("<footer>blco {}</footer>\n</body>\n</html>\n", env!("CARGO_PKG_VERSION")));
    out
}

fn add(out: &mut String, what: std::fmt::Arguments<'_>) {
    out.write_fmt(what).expect("a string takes all that is written");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The fit of each iteration.
fn fit_curve(out: &mut String, iterations: &[Iteration]) {
    let (left, above, height) = (70.0, 12.0, 220.0);
    if iterations.is_empty() {
        out.push_str("<p>No iteration was made.</p>\n");
        return;
    }
    let fits = iterations.iter().map(|i| i.fit);
    let (low, high) = fits.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), f| (l.min(f), h.max(f)));
    let (low, high) = if high > low { (low, high) } else { (low - 0.5, low + 0.5) };
    let last = iterations.len().max(2) as f64;
    let x = |number: usize| left + (number as f64 - 1.0) / (last - 1.0) * (WIDTH - left - 20.0);
    let y = |fit: f64| above + (high - fit) / (high - low) * height;
    let bottom = above + height;
    add(
        out,
        format_args!(
            "<svg viewBox=\"0 0 {WIDTH} {}\" width=\"{WIDTH}\" role=\"img\" aria-label=\"fit by iteration\">\n",
            bottom + 40.0
        ),
    );
    for step in 0..=4 {
        let fit = low + (high - low) * f64::from(step) / 4.0;
        let at = y(fit);
        add(
            out,
            format_args!("<line class=\"axis\" x1=\"{left}\" y1=\"{at:.1}\" x2=\"{WIDTH}\" y2=\"{at:.1}\"/>"),
        );
        add(
            out,
            format_args!(
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{fit:.5}</text>\n",
                left - 8.0,
                at + 4.0
            ),
        );
    }
    let every = iterations.len().div_ceil(10).max(1);
    for i in iterations.iter().filter(|i| (i.iteration - 1) % every == 0) {
        add(
            out,
            format_args!(
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                x(i.iteration),
                bottom + 18.0,
                i.iteration
            ),
        );
    }
    add(
        out,
        format_args!("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">iteration</text>\n", WIDTH, bottom + 36.0),
    );
    let points: Vec<String> =
        iterations.iter().map(|i| format!("{:.1},{:.1}", x(i.iteration), y(i.fit))).collect();
    add(out, format_args!("<polyline class=\"curve\" points=\"{}\"/>\n", points.join(" ")));
    for i in iterations {
        let (cx, cy) = (x(i.iteration), y(i.fit));
        add(
            out,
            format_args!(
                "<circle class=\"dot\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\"><title>iteration {}: fit {:.8}, change {:.2e}, {:.4} s</title></circle>\n",
                i.iteration, i.fit, i.change, i.seconds
            ),
        );
    }
    out.push_str("</svg>\n");
}

/// A row of a table: a name, a number, a bar of its size relative to the largest.
fn bar(out: &mut String, name: &str, number: f64, largest: f64) {
    let pixels = if largest > 0.0 { 200.0 * number.abs() / largest } else { 0.0 };
    let class = if number < 0.0 { " class=\"less\"" } else { "" };
    add(
        out,
        format_args!(
            "<tr><th>{name}</th><td>{}</td><td class=\"bar\"><div{class} style=\"width:{pixels:.0}px\"></div></td></tr>\n",
            self::number(number)
        ),
    );
}

fn weights(out: &mut String, lambda: &[f64]) {
    out.push_str("<table>\n");
    let largest = lambda.iter().copied().fold(0.0, f64::max);
    for (r, &weight) in lambda.iter().enumerate() {
        bar(out, &(r + 1).to_string(), weight, largest);
    }
    out.push_str("</table>\n");
}

fn components<T: Real>(out: &mut String, model: &Model<T>) {
    let tops: Vec<_> =
        model.factors.iter().map(|f| if f.rows() > SHORT_ROWS { top(f) } else { Vec::new() }).collect();
    for (r, weight) in model.lambda.data().iter().enumerate() {
        let open = if r < OPEN { " open" } else { "" };
        add(
            out,
            format_args!(
                "<details{open}><summary>Component {}, weight {}</summary>\n<div class=\"modes\">\n",
                r + 1,
                number(*weight)
            ),
        );
        for (mode, factor) in model.factors.iter().enumerate() {
            let rows = factor.rows();
            add(out, format_args!("<div><h3>Mode {}: {rows} rows</h3>\n", mode + 1));
            match tops[mode].get(r) {
                None => whole(out, factor, r),
                Some(top) => {
                    out.push_str("<table>\n");
                    for &(row, x) in top {
                        bar(out, &(row + 1).to_string(), x, top[0].1.abs());
                    }
                    out.push_str("</table>\n");
                }
            }
            out.push_str("</div>\n");
        }
        out.push_str("</div></details>\n");
    }
}

/// The rows of largest magnitude of each column, with their numbers; the lower row of equals.
fn top<T: Real>(factor: &Matrix<T>) -> Vec<Vec<(usize, f64)>> {
    let mut tops = vec![Vec::with_capacity(TOP + 1); factor.columns()];
    for row in 0..factor.rows() {
        for (top, x) in tops.iter_mut().zip(factor.row(row)) {
            let x = x.widen();
            let full = top.len() == TOP;
            if full && top.last().is_some_and(|&(_, least): &(usize, f64)| x.abs() <= least.abs()) {
                continue;
            }
            let at = top.partition_point(|&(_, other)| other.abs() >= x.abs());
            top.insert(at, (row, x));
            top.truncate(TOP);
        }
    }
    tops
}

/// All of column `r`, as bars from a line of zero.
fn whole<T: Real>(out: &mut String, factor: &Matrix<T>, r: usize) {
    const HEIGHT: f64 = 90.0;
    let column: Vec<f64> = (0..factor.rows()).map(|row| factor.row(row)[r].widen()).collect();
    let (low, high) = column.iter().fold((0.0f64, 0.0f64), |(l, h), &x| (l.min(x), h.max(x)));
    let span = if high > low { high - low } else { 1.0 };
    let step = (320.0 / column.len() as f64).min(24.0);
    let (width, zero) = (step * column.len() as f64, high / span * HEIGHT);
    add(
        out,
        format_args!(
            "<svg viewBox=\"0 0 {width:.1} {}\" width=\"{width:.1}\" role=\"img\" aria-label=\"a column\">\n",
            HEIGHT + 18.0
        ),
    );
    for (row, &x) in column.iter().enumerate() {
        let (size, class) = (x.abs() / span * HEIGHT, if x < 0.0 { "less" } else { "more" });
        let above = if x < 0.0 { zero } else { zero - size };
        add(
            out,
            format_args!(
                "<rect class=\"{class}\" x=\"{:.2}\" y=\"{above:.2}\" width=\"{:.2}\" height=\"{size:.2}\"><title>{}: {}</title></rect>\n",
                row as f64 * step,
                step * 0.8,
                row + 1,
                number(x)
            ),
        );
    }
    add(
        out,
        format_args!("<line class=\"axis\" x1=\"0\" y1=\"{zero:.2}\" x2=\"{width:.1}\" y2=\"{zero:.2}\"/>"),
    );
    add(
        out,
        format_args!(
            "<text x=\"0\" y=\"{}\">1</text><text x=\"{width:.1}\" y=\"{}\" text-anchor=\"end\">{}</text></svg>\n",
            HEIGHT + 15.0,
            HEIGHT + 15.0,
            column.len()
        ),
    );
}

fn similarity<T: Real>(out: &mut String, model: &Model<T>) {
    let rank = model.lambda.rows();
    let (cell, margin) = ((WIDTH - 40.0) / rank as f64, 30.0);
    let cell = cell.min(36.0);
    let side = margin + cell * rank as f64;
    add(
        out,
        format_args!(
            "<svg viewBox=\"0 0 {side:.1} {side:.1}\" width=\"{side:.1}\" role=\"img\" aria-label=\"similarity of components\">\n"
        ),
    );
    let every = rank.div_ceil(32);
    for r in (0..rank).step_by(every) {
        let middle = margin + (r as f64 + 0.5) * cell;
        add(
            out,
            format_args!(
                "<text x=\"{middle:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                margin - 8.0,
                r + 1
            ),
        );
        add(
            out,
            format_args!(
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                margin - 6.0,
                middle + 4.0,
                r + 1
            ),
        );
    }
    for (i, score) in similarities(model, model, false).into_iter().enumerate() {
        let (r, q) = (i / rank, i % rank);
        let at = |k: usize| margin + k as f64 * cell;
        add(
            out,
            format_args!(
                "<rect class=\"more\" fill-opacity=\"{score:.3}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{cell:.1}\" height=\"{cell:.1}\"><title>{} and {}: {score:.4}</title></rect>\n",
                at(q),
                at(r),
                r + 1,
                q + 1
            ),
        );
    }
    out.push_str("</svg>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model<f64> {
        let numbers = |rows: usize| (0..rows * 2).map(|i| ((i * 7919 % 101) as f64 - 50.0) / 50.0).collect();
        let factors = [100, 5].map(|rows| Matrix::from_rows(rows, 2, numbers(rows))).to_vec();
        Model { lambda: Matrix::from_rows(2, 1, vec![3.0, 0.0]), factors }
    }

    #[test]
    fn top_rows_are_those_of_a_sort() {
        let factor = &model().factors[0];
        for (r, top) in top(factor).into_iter().enumerate() {
            let mut wanted: Vec<(usize, f64)> = (0..100).map(|i| (i, factor.row(i)[r])).collect();
            wanted.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
            assert_eq!(top, wanted[..TOP]);
        }
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
                .map(|iteration| Iteration {
                    iteration,
                    fit: 1.0 - 1.0 / iteration as f64,
                    change: 0.1,
                    fit_floor: 1e-8,
                    pseudo_inverses: 0,
                    condition: 1.0,
                    vanished: 0,
                    seconds: 0.1,
                    mttkrp_seconds: 0.1,
                    update_seconds: 0.1,
                    solve_seconds: 0.1,
                })
                .collect();
            let facts = [("store", "a<b>&c.blco".to_owned())];
            let page = html(&Page { title: "CP", facts: &facts, iterations: &history, model: &model() });
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
