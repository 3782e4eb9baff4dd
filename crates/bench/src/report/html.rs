//! The report: one page with plots, in need of nothing but a browser.

use anyhow::Context;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::markdown::NOTES;
use super::papers::{
    COMPARISONS, CORAL_DYNAMIC, CORAL_P2, CORAL_P4, CORAL_STATIC, Comparison, Figure, Fit, Ours,
    SOURCES, coral_ratio,
};
use super::{plot, words};
use crate::curve::{Mode, Source};
use crate::record::{Bar, Graph, Record, Row, Samples, Section, Verdict};
use crate::stats::Spread;
use crate::subject::Subject;

/// A larger page does not belong into a repository.
pub const MOST_BYTES: usize = 1_500_000;

/// The page.
///
/// # Errors
/// A plot cannot be drawn.
pub fn page(record: &Record) -> anyhow::Result<String> {
    let mut parts = Vec::new();
    for subject in Subject::ALL {
        if record.rows.iter().any(|row| row.head.subject == subject) {
            parts.push(part(record, subject)?);
        }
    }
    // What begins with < in a script could end it.
    let raw = serde_json::to_string(record)?.replace('<', "\\u003c");
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Steadfast benchmarks, " (record.commit) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Steadfast benchmarks" }
                (about(record))
                @for part in &parts { (part) }
                h2 { "How to read this" }
                ul { @for note in NOTES { li { (note) } } }
                h2 { "Sources" }
                dl {
                    @for source in SOURCES {
                        dt { (source.system) }
                        dd { (source.cited) }
                    }
                }
                h2 { "Raw figures" }
                p {
                    "Every sample of this page is in its source, as JSON in the element "
                    code { "figures" } ". " code { "target/release/bench --from FILE" }
                    " makes the pages again from such a file."
                }
                script id="figures" type="application/json" { (PreEscaped(raw)) }
            }
        }
    };
    Ok(markup.into_string())
}

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 16px/1.5 sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.9rem; }
th, td { border-bottom: 1px solid var(--line); padding: 0.25rem 0.6rem; text-align: left; vertical-align: top; }
th { font-weight: 600; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font-size: 0.85rem; background: var(--soft); padding: 0 0.25rem; border-radius: 3px; }
figure { margin: 1.5rem 0; }
figcaption { font-weight: 600; }
figure p { margin: 0.25rem 0; font-size: 0.9rem; }
svg { max-width: 100%; height: auto; }
svg text { fill: currentColor; }
.wide { overflow-x: auto; }
.met { color: #2c9c5a; }
.missed { color: #c74b50; font-weight: 600; }
.noise { color: #b07a1a; }
";

fn about(record: &Record) -> Markup {
    let load = format!("{:.1}, {:.1}", record.load[0], record.load[1]);
    let rows = [
        ("command", record.command.clone()),
        ("commit", record.commit.clone()),
        ("when", format!("{}, for {:.0} s", record.time, record.took_s)),
        ("kernel", record.kernel.clone()),
        ("machine", record.machine.clone()),
        ("load of the machine (1 min), begin and end", load),
    ];
    html! {
        table { @for (name, value) in rows { tr { th { (name) } td { (value) } } } }
    }
}

fn part(record: &Record, subject: Subject) -> anyhow::Result<Markup> {
    let rows: Vec<&Row> = record.rows.iter().filter(|r| r.head.subject == subject).collect();
    let beside: Vec<_> =
        COMPARISONS.iter().map(|c| beside_others(record, subject, c)).collect::<Result<_, _>>()?;
    let of = |curve: &str| -> Vec<&Row> {
        let on = |r: &&&Row| r.head.point.as_ref().is_some_and(|p| p.curve == curve);
        rows.iter().filter(on).copied().collect()
    };
    let mut curves = Vec::new();
    for name in record.curves() {
        let points = of(name);
        if points.len() < 2 {
            continue;
        }
        let short = name.strip_prefix(subject.prefix()).unwrap_or(name);
        if !short.starts_with("coral-") {
            curves.push(curve(short, &points)?);
        } else if of_duplex(short) {
            let modes = Mode::ALL.map(|mode| (mode, of(&format!("{name}{}", mode.suffix()))));
            curves.push(coral_curve(short, &modes)?);
        }
    }
    let own = |graph: &&Graph| rows.iter().any(|row| row.head.id == graph.row);
    let graphs: Vec<_> = record.graphs.iter().filter(own).map(graph).collect::<Result<_, _>>()?;
    let (plain, name) = words::heading(subject);
    Ok(html! {
        h2 { (plain) @if !name.is_empty() { " " code { (name) } } }
        p { (words::compared_how(subject)) }
        h3 { "Bars" }
        (bars_met(&rows))
        @if beside.iter().any(Option::is_some) {
            h3 { (words::beside(subject)) }
            p { "Whiskers: quartiles of what was measured here, or the range that was published." }
            @for figure in beside.iter().flatten() { (figure) }
        }
        @if !curves.is_empty() {
            h3 { "Curves" }
            p { "Medians; whiskers from quartile to quartile." }
            @for figure in &curves { (figure) }
        }
        @if !graphs.is_empty() {
            h3 { "Around a failure" }
            @for figure in &graphs { (figure) }
        }
        @for section in Section::ALL {
            @let rows: Vec<&Row> = rows.iter().filter(|r| r.head.section == section).copied().collect();
            @if !rows.is_empty() {
                h3 { (section.title()) }
                (table(record, &rows))
            }
        }
    })
}

/// The rows that have a bar, in short.
fn bars_met(rows: &[&Row]) -> Markup {
    let rows: Vec<_> = rows.iter().filter(|row| row.head.bar != Bar::Beside).collect();
    let met = rows.iter().filter(|row| row.verdict() == Verdict::Met).count();
    html! {
        p { (met) " of " (rows.len()) " bars are met clearly." }
        div.wide { table {
            tr { th { "what" } th { "bar" } th { "measured" } th { "verdict" } }
            @for row in rows {
                tr {
                    td { (row.head.title) }
                    td.n { (words::bar(row)) }
                    td.n { (measured(row)) }
                    (verdict(row))
                }
            }
        } }
    }
}

/// The figure that is held against the bar, in the bar's unit.
fn measured(row: &Row) -> String {
    match (row.figure(), &row.samples) {
        (Some(figure), Samples::Pairs { .. }) => format!("{figure:.3}×"),
        (Some(figure), _) => format!("{} {}", words::short(figure), row.head.unit),
        (None, _) => "–".to_owned(),
    }
}

fn verdict(row: &Row) -> Markup {
    let class = match row.verdict() {
        Verdict::Met => "met",
        Verdict::Missed(_) | Verdict::Failed => "missed",
        Verdict::Noise { .. } => "noise",
        Verdict::Reported | Verdict::Alike | Verdict::Unable => "",
    };
    html! { td class=(class) { (words::verdict(row)) } }
}

fn table(record: &Record, rows: &[&Row]) -> Markup {
    let (pairs, alone): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| matches!(row.samples, Samples::Pairs { .. }));
    html! {
        @if !pairs.is_empty() {
            div.wide { table {
                tr {
                    th { "what" } th { "bar" } th { "ratio: median (quartiles)" }
                    @for side in words::sides(pairs[0].head.subject) { th { (side) } }
                    th { "runs" } th { "verdict" } th { "command" }
                }
                @for row in pairs { tr {
                    td { (row.head.title) }
                    td.n { (words::bar(row)) }
                    @for cell in words::compared(row).unwrap_or_default() { td.n { (cell) } }
                    (verdict(row))
                    td { code { (command(record, row)) } }
                } }
            } }
        }
        @if !alone.is_empty() {
            div.wide { table {
                tr {
                    th { "what" } th { "bar" } th { "measured" } th { "median (min to max)" }
                    th { "runs" } th { "verdict" } th { "command" }
                }
                @for row in alone { tr {
                    td { (row.head.title) }
                    td.n { (words::bar(row)) }
                    @for cell in words::alone(row) { td.n { (cell) } }
                    (verdict(row))
                    td { code { (command(record, row)) } }
                } }
            } }
        }
    }
}

/// What measures the row again.
fn command(record: &Record, row: &Row) -> String {
    let full = record.command.contains("FULL=1");
    crate::command(full, std::slice::from_ref(&row.head.id))
}

fn figure(title: &str, note: &str, svg: String) -> Markup {
    html! {
        figure {
            figcaption { (title) }
            @if !note.is_empty() { p { (note) } }
            div.wide role="img" aria-label=(title) { (PreEscaped(svg)) }
        }
    }
}

/// Nothing if none of our rows was measured.
fn beside_others(
    record: &Record,
    subject: Subject,
    comparison: &Comparison,
) -> anyhow::Result<Option<Markup>> {
    let ours = |(id, name): &(&str, &str)| {
        let row = record.row(&format!("{}{id}", subject.prefix()))?;
        let judged = row.samples.judged();
        if judged.is_empty() {
            return None;
        }
        let spread = Spread::of(&judged);
        let times = if comparison.ours == Ours::Percent { 100.0 } else { 1.0 };
        let name = match *name {
            "" => "Steadfast".to_owned(),
            // There are others' programs among those that were measured here.
            name if subject == Subject::Runtime => name.to_owned(),
            name => format!("Steadfast, {name}"),
        };
        let (value, from_to) = match comparison.ours {
            // The figure that the row is about, a high percentile perhaps, has no quartiles.
            Ours::Value => (row.figure()?, [row.figure()?; 2]),
            Ours::Added | Ours::AddedPercent => {
                let added = added(&row.samples, comparison.ours == Ours::AddedPercent);
                if added.is_empty() {
                    return None;
                }
                let spread = Spread::of(&added);
                (spread.median, [spread.q1, spread.q3])
            }
            Ours::Capacity => (100.0 / spread.median, [100.0 / spread.q3, 100.0 / spread.q1]),
            Ours::Percent | Ours::Ratio => (spread.median, [spread.q1, spread.q3]),
        };
        let from_to = from_to.map(|v| v * times);
        let (value, colour) = (value * times, 0);
        Some(plot::Bar { name, value, from_to, label: words::short(value), colour })
    };
    let groups: Vec<_> = comparison
        .groups
        .iter()
        .map(|group| {
            let mut bars: Vec<_> = group.ours.iter().filter_map(ours).collect();
            let measured = !bars.is_empty();
            bars.extend(group.theirs.iter().map(published));
            (measured, (group.name.to_owned(), bars))
        })
        .collect();
    if !groups.iter().any(|(measured, _)| *measured) {
        return Ok(None);
    }
    let groups = groups.into_iter().filter(|(measured, _)| *measured).map(|(_, group)| group);
    let (unit, log) = (comparison.unit.to_owned(), comparison.log);
    let svg = plot::bars(&plot::Bars { unit, log, groups: groups.collect() })?;
    let places = comparison.groups.iter().flat_map(|g| g.theirs).map(place);
    let mut places: Vec<_> = places.filter(|p| !p.is_empty()).collect();
    places.sort();
    places.dedup();
    let note = match &places[..] {
        [] => comparison.note.to_owned(),
        places => format!("{} Published: {}.", comparison.note, places.join("; ")),
    };
    Ok(Some(figure(comparison.title, &note, svg)))
}

fn published(figure: &Figure) -> plot::Bar {
    let system = figure.source.system;
    let name = match figure.what {
        "" => system.to_owned(),
        what => format!("{system}, {what}"),
    };
    let number = SOURCES.iter().position(|s| std::ptr::eq(*s, figure.source));
    let colour = 1 + number.expect("every source is in the list");
    let [from, to] = figure.range;
    let label = match from == to {
        true => words::short(from),
        false => format!("{} to {}", words::short(from), words::short(to)),
    };
    plot::Bar { name, value: f64::midpoint(from, to), from_to: figure.range, label, colour }
}

fn place(figure: &Figure) -> String {
    match figure.place {
        "" => String::new(),
        place => format!("{}, {place}", figure.source.system),
    }
}

/// What protection adds, run by run; in percent of the unprotected or in the row's unit.
fn added(samples: &Samples, percent: bool) -> Vec<f64> {
    let Samples::Pairs { protected, bare } = samples else { return Vec::new() };
    let of = |(p, b): (&f64, &f64)| if percent { 100.0 * (p / b - 1.0) } else { p - b };
    protected.iter().zip(bare).map(of).collect()
}

/// What a curve is called, and its axes.
struct Axes {
    title: &'static str,
    x: &'static str,
    y: &'static str,
    log_x: bool,
}

fn axes_of(curve: &str) -> Option<Axes> {
    let axes = |title, x, y, log_x| Some(Axes { title, x, y, log_x });
    match curve {
        "clients-1000" => {
            axes("1 KiB requests of so many clients, 1 Gbit/s", "clients", "requests/s", true)
        }
        "clients-100" => {
            axes("1 KiB requests of so many clients, 100 Mbit/s", "clients", "requests/s", true)
        }
        "reply-p50" => {
            axes("Time of a request, 1 client, 100 Mbit/s", "KiB of the reply", "µs", false)
        }
        "reply-rate" => {
            axes("Requests of 16 clients, 100 Mbit/s", "KiB of the reply", "requests/s", false)
        }
        "parallel-in" => {
            axes("Bulk transfers in at once, 1 Gbit/s", "transfers", "Mbit/s together", true)
        }
        "parallel-out" => {
            axes("Bulk transfers out at once, 1 Gbit/s", "transfers", "Mbit/s together", true)
        }
        "coral-p50" | "coral-made-p50" => {
            axes("Time of a request, 1 client, unshaped", "KiB of the reply", "µs", false)
        }
        "coral-rate" | "coral-made-rate" => {
            axes("Peak throughput, 50 clients, unshaped", "KiB of the reply", "requests/s", false)
        }
        "coral-cpu" | "coral-made-cpu" => {
            axes("Processor time of the primary", "KiB of the reply", "µs per request", false)
        }
        "coral-cpu-nodes" | "coral-made-cpu-nodes" => {
            axes("Processor time of all nodes", "KiB of the reply", "µs per request", false)
        }
        "overload" => axes(
            "Answers when more is asked for than can be answered",
            "requests asked for ÷ the most that fifty clients get",
            "answers per second",
            false,
        ),
        "takeover" => axes("Takeover of so many idle flows", "flows", "ms beyond detection", true),
        "catch-up" => axes(
            "Catching up with what the client has of a reply, 1 Gbit/s",
            "MB delivered before the host's death",
            "ms from promotion to the first new byte",
            false,
        ),
        _ => None,
    }
}

fn x_of(row: &Row) -> f64 {
    row.head.point.as_ref().map_or(0.0, |p| p.x)
}

/// A line through what `of` says of each row's samples.
fn line_of(name: &str, rows: &[&Row], of: &dyn Fn(&Samples) -> Vec<f64>) -> plot::Line {
    let mut rows = rows.to_vec();
    rows.sort_by(|a, b| x_of(a).total_cmp(&x_of(b)));
    let mut line =
        plot::Line { name: name.to_owned(), points: vec![], from_to: vec![], dots: true };
    for row in rows {
        let (values, x) = (of(&row.samples), x_of(row));
        if !values.is_empty() {
            let spread = Spread::of(&values);
            line.points.push([x, spread.median]);
            line.from_to.push([spread.q1, spread.q3]);
        }
    }
    line
}

/// The samples of a side.
fn side(protected: bool) -> impl Fn(&Samples) -> Vec<f64> {
    move |samples: &Samples| match samples {
        Samples::Pairs { protected: values, .. } if protected => values.clone(),
        Samples::Pairs { bare, .. } => bare.clone(),
        Samples::Alone { values, .. } => values.clone(),
        Samples::Failed(_) | Samples::Unable(_) => Vec::new(),
    }
}

/// Whether a curve of CoRAL's is that of the mode with which the others are drawn.
fn of_duplex(curve: &str) -> bool {
    Mode::ALL.iter().all(|mode| mode.suffix().is_empty() || !curve.ends_with(mode.suffix()))
}

/// All modes in one figure, and what each adds, beside what CoRAL added.
fn coral_curve(name: &str, modes: &[(Mode, Vec<&Row>)]) -> anyhow::Result<Markup> {
    let axes = axes_of(name).with_context(|| format!("nobody knows the curve {name}"))?;
    let chart = |y: &str, lines| plot::Lines {
        x: axes.x.to_owned(),
        y: y.to_owned(),
        log_x: axes.log_x,
        from_zero: true,
        lines,
        marks: Vec::new(),
    };
    let measured = || modes.iter().filter(|(_, rows)| !rows.is_empty());
    let duplex = &modes[0].1;
    let mut lines = vec![line_of("standard", duplex, &side(false))];
    lines.extend(measured().map(|(mode, rows)| line_of(mode.name(), rows, &side(true))));
    if name.ends_with("-rate") {
        let two = |s: &Samples| side(false)(s).into_iter().map(|rate| 2.0 * rate).collect();
        lines.push(line_of("2 × standard", duplex, &two));
    }
    let source =
        Source::ALL.into_iter().rfind(|s| name.starts_with(&format!("coral-{}", s.infix())));
    let replies = source.map_or("", Source::name);
    let title = format!("{}; replies {replies}", axes.title);
    let drawn = figure(&title, "", plot::lines(&chart(axes.y, lines))?);
    let fits: &[(&str, &Fit)] = match name {
        "coral-p50" | "coral-made-p50" => &[("P2", &CORAL_P2), ("P4", &CORAL_P4)],
        "coral-cpu-nodes" => &[("static", &CORAL_STATIC)],
        "coral-made-cpu-nodes" => &[("dynamic", &CORAL_DYNAMIC)],
        _ => return Ok(drawn),
    };
    let percent = |samples: &Samples| added(samples, true);
    let mut lines: Vec<_> =
        measured().map(|(mode, rows)| line_of(mode.name(), rows, &percent)).collect();
    let lengths: Vec<_> = line_of("", duplex, &percent).points.iter().map(|p| p[0]).collect();
    for (setting, fit) in fits {
        for (mode, _) in measured() {
            let at = |&x: &f64| Some([x, fit.added(*mode, x)?[1]]);
            let points: Vec<_> = lengths.iter().filter_map(at).collect();
            if !points.is_empty() {
                let name = format!("CoRAL, {}, {setting}", mode.name());
                lines.push(plot::Line { name, points, from_to: Vec::new(), dots: true });
            }
        }
    }
    let svg = plot::lines(&chart("% of the unprotected", lines))?;
    let note = "CoRAL: computed from its fitted constants (sections 6.1, 6.2, 6.6).";
    let title = format!("What each mode adds, beside CoRAL's; replies {replies}");
    let added = figure(&title, note, svg);
    Ok(html! { (drawn) (added) })
}

fn curve(name: &str, rows: &[&Row]) -> anyhow::Result<Markup> {
    let axes = axes_of(name).with_context(|| format!("nobody knows the curve {name}"))?;
    let line = |name: &str, of: &dyn Fn(&Samples) -> Vec<f64>| line_of(name, rows, of);
    let compared = rows.iter().any(|row| matches!(row.samples, Samples::Pairs { .. }));
    let lines = if compared {
        vec![line("protected", &side(true)), line("unprotected", &side(false))]
    } else {
        vec![line("protected", &side(true))]
    };
    let chart = |y: &str, lines| plot::Lines {
        x: axes.x.to_owned(),
        y: y.to_owned(),
        log_x: axes.log_x,
        from_zero: true,
        lines,
        marks: Vec::new(),
    };
    let svg = plot::lines(&chart(axes.y, lines))?;
    let mut drawn = figure(axes.title, "", svg);
    if name == "reply-p50" {
        let ours = line("Steadfast", &Samples::judged);
        let points = ours.points.iter().map(|&[x, _]| [x, coral_ratio(x)]).collect();
        let theirs =
            plot::Line { name: "CoRAL".to_owned(), points, from_to: Vec::new(), dots: true };
        let svg = plot::lines(&chart("protected ÷ unprotected", vec![ours, theirs]))?;
        let note = "CoRAL: computed from its fitted constants (section 6.1).";
        let ratio = figure("The same as a ratio, beside CoRAL's", note, svg);
        drawn = html! { (drawn) (ratio) };
    }
    Ok(drawn)
}

fn graph(graph: &Graph) -> anyhow::Result<Markup> {
    let line = |line: &crate::record::Line| plot::Line {
        name: line.name.clone(),
        points: line.points.clone(),
        from_to: Vec::new(),
        dots: false,
    };
    let svg = plot::lines(&plot::Lines {
        x: graph.x.clone(),
        y: graph.y.clone(),
        log_x: graph.log_x,
        from_zero: true,
        lines: graph.lines.iter().map(line).collect(),
        marks: graph.marks.iter().map(|m| (m.x, m.name.clone())).collect(),
    })?;
    Ok(figure(&graph.title, "", svg))
}

#[cfg(test)]
mod tests {
    use scraper::{Html, Selector};

    use super::*;
    use crate::plan::{Depth, Plan};
    use crate::report::fixture;

    fn parsed(page: &str) -> Html {
        let parsed = Html::parse_document(page);
        assert!(parsed.errors.is_empty(), "{:?}", parsed.errors);
        parsed
    }

    fn texts(page: &Html, selector: &str) -> Vec<String> {
        let selector = Selector::parse(selector).unwrap();
        page.select(&selector).map(|e| e.text().collect()).collect()
    }

    #[test]
    fn a_full_record_renders_and_every_row_has_its_command() {
        let record = fixture::full();
        let text = page(&record).unwrap();
        let page = parsed(&text);
        let commands = texts(&page, "td code");
        for row in &record.rows {
            let command = format!("make bench FULL=1 ONLY={}", row.head.id);
            assert!(commands.contains(&command), "no {command}");
        }
        let titles = texts(&page, "figcaption");
        for comparison in &COMPARISONS {
            assert!(titles.iter().any(|t| t == comparison.title), "{}", comparison.title);
        }
        for graph in &record.graphs {
            assert!(titles.contains(&graph.title), "{}", graph.title);
        }
        assert!(text.len() < MOST_BYTES, "{} bytes", text.len());
    }

    #[test]
    fn the_page_fetches_nothing() {
        let page = page(&fixture::full()).unwrap();
        let addresses = page.replace("http://www.w3.org/2000/svg", "");
        for word in ["http:", "https:", "src=", "href=", "url(", "@import"] {
            assert!(!addresses.contains(word), "{word}");
        }
    }

    #[test]
    fn the_record_is_in_the_page_whatever_it_says() {
        let mut record = fixture::full();
        record.rows[0].samples = Samples::Failed("</script><b>&".into());
        let page = parsed(&page(&record).unwrap());
        let raw = texts(&page, "script#figures").concat();
        let back: Record = serde_json::from_str(&raw).unwrap();
        assert_eq!(back.rows[0].samples, record.rows[0].samples);
        assert_eq!(back.rows.len(), record.rows.len());
        assert!(texts(&page, "td.missed").contains(&"not measured".to_owned()));
    }

    #[test]
    fn a_record_of_one_row_renders() {
        let mut record = fixture::full();
        record.rows.truncate(1);
        record.graphs.clear();
        parsed(&page(&record).unwrap());
    }

    #[test]
    fn every_curve_is_titled() {
        for head in Plan::of(Depth::Full).heads() {
            let Some(point) = &head.point else { continue };
            let curve = point.curve.strip_prefix(head.subject.prefix()).unwrap();
            let drawn_with = !of_duplex(curve);
            assert!(drawn_with || axes_of(curve).is_some(), "{curve}");
        }
    }
}
