//! A decomposition as one page of HTML that needs no other file: the fit by iteration, the weights, each component's columns, and how similar
//! components are. Drawings are SVG; there is no script.
//!
//! If a mode's labels are a range or a cycle, the whole column is drawn as a line; if the mode is short (at most 64 rows) and has no labels,
//! as bars. For other modes, the numbers of largest magnitude are listed with their labels, or with indices from 1.

use super::components::ShownMode;
use super::cpd_ranks::{RankReport, number};
use crate::decomp::score::similarities;
use crate::decomp::{Iteration, Model};
use crate::dense::{Matrix, Real};
use crate::error::{Error, Result};
use minijinja::{AutoEscape, Environment, Value, context};
use std::fmt::Display;

/// The most rows of a mode that is drawn completely.
const SHORT_ROWS: usize = 64;
/// The number of components whose columns are shown at first.
const OPEN: usize = 8;
/// The most components on the page; the others are in components.csv.
const SHOWN: usize = 128;
/// The most components whose similarity is drawn.
const SIMILAR: usize = 256;
/// The width of drawings.
const WIDTH: f64 = 640.0;

/// The page, as a Jinja template. Values are escaped.
const TEMPLATE: &str = include_str!("model_page.html");

/// The page of `model` under this title, with named facts, the compared ranks and the iterations.
pub fn html<T: Real>(
    title: &str,
    facts: &[(&str, String)],
    ranks: &[RankReport],
    iterations: &[Iteration],
    model: &Model<T>,
    modes: &[ShownMode],
) -> Result<String> {
    let lambda = model.lambda.data();
    let weights = lambda.iter().enumerate().map(|(r, &x)| ((r + 1).to_string(), x));
    let mut page = Environment::new();
    page.set_auto_escape_callback(|_| AutoEscape::Html);
    let drawn = context! {
        title, facts,
        ranks => (!ranks.is_empty()).then(|| drawing(rank_chart(ranks))),
        fit_curve => drawing(fit_curve(iterations)),
        components => components(model, modes),
        others => lambda.len().saturating_sub(SHOWN),
        weights => table(weights, lambda.iter().copied().fold(0.0, f64::max)),
        similarity => drawing(similarity(model)),
        version => env!("CARGO_PKG_VERSION"),
    };
    page.render_str(TEMPLATE, drawn).map_err(|e| Error::request(format!("the page cannot be written: {e}")))
}

/// A drawing for the template, which must not be escaped.
fn drawing(svg: String) -> Value {
    Value::from_safe_string(svg)
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

/// A horizontal line.
fn level(x: f64, end: f64, y: f64) -> String {
    format!("<line class=\"axis\" x1=\"{x:.1}\" y1=\"{y:.2}\" x2=\"{end:.1}\" y2=\"{y:.2}\"/>\n")
}

/// A mark of a legend.
fn mark(class: &str, x: f64, y: f64) -> String {
    format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>\n")
}

/// A rectangle with these attributes at `x` and `y`, which shows `title` under the pointer.
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

/// Fit and stability by rank: the fit by the axis on the left, stability from 0 to 1 by the one on the right.
fn rank_chart(ranks: &[RankReport]) -> String {
    let (left, right, above, height) = (70.0, WIDTH - 50.0, 12.0, 220.0);
    let fits = ranks.iter().map(|rank| rank.fit);
    let (low, high) = fits.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), f| (l.min(f), h.max(f)));
    let (low, high) = if high > low { (low, high) } else { (low - 0.5, low + 0.5) };
    let (first, last) = (ranks[0].rank as f64, ranks[ranks.len() - 1].rank as f64);
    let x =
        |rank: usize| left + 12.0 + (rank as f64 - first) / (last - first).max(1.0) * (right - left - 24.0);
    let y_of_fit = |fit: f64| above + (high - fit) / (high - low) * height;
    let y_of_stability = |stability: f64| above + (1.0 - stability) * height;
    let bottom = above + height;
    let mut out = svg(WIDTH, bottom + 62.0, "fit and stability by rank");
    for step in 0..=4 {
        let part = f64::from(step) / 4.0;
        let fit = low + (high - low) * part;
        out += &level(left, right, y_of_fit(fit));
        out += &label(left - 8.0, y_of_fit(fit) + 4.0, "end", format_args!("{fit:.5}"));
        out += &label(right + 8.0, y_of_stability(part) + 4.0, "start", part);
    }
    for rank in ranks.iter().step_by(ranks.len().div_ceil(16)) {
        out += &label(x(rank.rank), bottom + 18.0, "middle", rank.rank);
    }
    out += &label(f64::midpoint(left, right), bottom + 36.0, "middle", "rank");
    let curve = |class: &str, dots: &str, points: Vec<(f64, f64, String, bool)>| {
        let line: Vec<String> = points.iter().map(|(x, y, ..)| format!("{x:.1},{y:.1}")).collect();
        let dot = |(x, y, title, kept): &(f64, f64, String, bool)| {
            let (kept, r) = if *kept { (" kept", 5) } else { ("", 3) };
            format!(
                "<circle class=\"{dots}{kept}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\"><title>{title}</title></circle>\n"
            )
        };
        let dots: String = points.iter().map(dot).collect();
        format!("<polyline class=\"{class}\" points=\"{}\"/>\n{dots}", line.join(" "))
    };
    let fit =
        |r: &RankReport| (x(r.rank), y_of_fit(r.fit), format!("rank {}: fit {:.6}", r.rank, r.fit), r.kept);
    let stability = |r: &RankReport| {
        let stability = r.stability?;
        let title = format!("rank {}: stability {stability:.4}", r.rank);
        Some((x(r.rank), y_of_stability(stability), title, r.kept))
    };
    out += &curve("curve", "dot", ranks.iter().map(fit).collect());
    out += &curve("second", "dot2", ranks.iter().filter_map(stability).collect());
    for (at, class, name) in [(left, "dot", "fit, left"), (left + 120.0, "dot2", "stability, right")] {
        out += &mark(class, at + 5.0, bottom + 52.0);
        out += &label(at + 14.0, bottom + 56.0, "start", name);
    }
    out + "</svg>\n"
}

/// A table for the template: numbers with their names, each with a bar of its size relative to `largest`.
fn table(numbers: impl Iterator<Item = (String, f64)>, largest: f64) -> Value {
    let row = |(name, x): (String, f64)| {
        let pixels = if largest > 0.0 { 200.0 * x.abs() / largest } else { 0.0 };
        let (name, whole) = shortened(&name);
        context! { name, whole, number => number(x), less => x < 0.0, width => format!("{pixels:.0}") }
    };
    Value::from(numbers.map(row).collect::<Vec<_>>())
}

/// A label for people: a long one is cut in its middle, and its whole text is shown under the pointer.
fn shortened(label: &str) -> (String, Option<String>) {
    const HEAD: usize = 30;
    const TAIL: usize = 17;
    let length = label.chars().count();
    if label.is_empty() {
        return ("(empty)".into(), None);
    }
    if length <= HEAD + 1 + TAIL {
        return (label.into(), None);
    }
    let head: String = label.chars().take(HEAD).collect();
    let tail: String = label.chars().skip(length - TAIL).collect();
    (format!("{head}…{tail}"), Some(label.chars().take(1000).collect()))
}

/// Column `r` of an ordered mode as a line over its whole range. A line of many rows shows the number of largest magnitude in each
/// stretch.
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

/// The components on the page, for the template.
fn components<T: Real>(model: &Model<T>, modes: &[ShownMode]) -> Vec<Value> {
    let component = |(r, weight): (usize, &f64)| {
        let mode = |(mode, factor): (usize, &Matrix<T>)| {
            let shown = &modes[mode];
            let (mut svg, mut top) = (None, None);
            if shown.is_line {
                svg = Some(drawing(line(shown, factor, r)));
            } else if !shown.has_labels && factor.rows() <= SHORT_ROWS {
                svg = Some(drawing(whole(factor, r)));
            } else {
                let rows = &shown.tops[r];
                let largest = rows.first().map_or(0.0, |row| row.1.abs());
                top = Some(table(rows.iter().map(|&(row, x)| (shown.label(row), x)), largest));
            }
            let what = if shown.has_labels { "labels" } else { "rows" };
            context! { title => &shown.title, rows => factor.rows(), what, drawing => svg, top }
        };
        let modes: Vec<Value> = model.factors.iter().enumerate().map(mode).collect();
        context! { name => r + 1, weight => number(*weight), is_open => r < OPEN, modes }
    };
    model.lambda.data().iter().take(SHOWN).enumerate().map(component).collect()
}

/// The whole column `r`, as bars from a line at zero.
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

    /// Every opened element is closed, names are escaped, no number is NaN, no other file is loaded.
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
            let ranks: Vec<RankReport> = (1..=iterations).map(RankReport::example).collect();
            let page = html("CP", &facts, &ranks, &history, &model(), &modes()).unwrap();
            assert!(
                page.contains("a&lt;b&gt;&amp;c.blco")
                    && page.contains("&quot;&lt;b&gt;&quot;")
                    && !page.contains("NaN")
                    && !page.contains("inf")
            );
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
