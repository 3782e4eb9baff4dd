//! The program itself, as far as it measures nothing.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn bench(dir: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(words)
        .env_remove("STEADFAST_BIN")
        .current_dir(dir)
        .output()
        .expect("the program runs")
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// As a run leaves it in `bench/out`.
const RECORD: &str = r#"{
  "time": "2026-01-01T00:00:00Z", "command": "make bench ONLY=small-p50", "commit": "0123abc",
  "kernel": "6.18", "machine": "2 processors", "load": [0.1, 0.2], "took_s": 9.5,
  "rows": [{
    "id": "small-p50", "subject": "track", "section": "requests", "title": "a small request",
    "unit": "µs", "bar": {"at_most": 1.1}, "point": null,
    "samples": {"pairs": {"protected": [10.0, 11.0], "bare": [10.0, 10.0]}}, "more": {}
  }],
  "graphs": []
}"#;

#[test]
fn rows_are_listed_with_the_time_they_take() {
    let dir = tempfile::tempdir().unwrap();
    let said = words(&bench(dir.path(), &["--list", "--only", "gap-p50"]).stdout);
    assert!(said.contains("gap-p99 ") && said.contains(" minutes"), "{said}");
    let said = words(&bench(dir.path(), &["--list", "--only", "message-coral-50k-p50"]).stdout);
    let line = said.lines().find(|line| line.starts_with("message-coral-50k-rate "));
    assert_eq!(line.and_then(|line| line.split_whitespace().nth(1)), Some("message"), "{said}");
    let all = words(&bench(dir.path(), &["--list", "--full"]).stdout);
    assert!(all.lines().count() > 80, "{all}");
}

#[test]
fn pages_are_made_again_from_a_record() {
    let dir = tempfile::tempdir().unwrap();
    // Earlier runs had rows of schemes only.
    let earlier = RECORD.replace(r#""subject""#, r#""scheme""#);
    fs::write(dir.path().join("run.json"), earlier).unwrap();
    let words_ = ["--from", "run.json", "--out", "out", "--page", "b.md", "--report", "b.html"];
    let output = bench(dir.path(), &words_);
    assert!(output.status.success(), "{}", words(&output.stderr));
    let read = |path: &str| fs::read_to_string(dir.path().join(path)).unwrap();
    assert!(read("b.md").contains("| a small request | ≤ 1.1× | 1.050 (1.000 to 1.100) |"));
    assert!(read("b.html").contains("make bench ONLY=small-p50"));
    assert_eq!(read("b.html"), read("out/report.html"));
}

#[test]
fn a_row_that_failed_fails_the_run_after_the_pages_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let samples = r#"{"pairs": {"protected": [10.0, 11.0], "bare": [10.0, 10.0]}}"#;
    let failed = RECORD.replace(samples, r#"{"failed": "no host"}"#);
    fs::write(dir.path().join("run.json"), failed).unwrap();
    let output = bench(dir.path(), &["--from", "run.json", "--out", "out"]);
    let said = words(&output.stderr);
    assert!(!output.status.success() && said.contains("not be measured: small-p50"), "{said}");
    assert!(dir.path().join("out/report.html").exists());
}

#[test]
fn what_is_missing_is_said() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("odd.json"), "{}").unwrap();
    for (words_, expected) in [
        (&["--from", "odd.json"][..], "odd.json holds no figures"),
        (&["--from", "none.json"], "cannot read none.json"),
        (&["--only", "nothing"], "no row begins with nothing"),
        // As root the product is missing, as anybody else the privilege.
        (&["--only", "gap-p50"], "run"),
    ] {
        let output = bench(dir.path(), words_);
        let said = words(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{words_:?}: {said}");
    }
}
