//! Commands that speak to a running daemon through the socket in its state directory.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::cli::{EventsArgs, StatusArgs};
use crate::daemon::{Question, SOCKET};

/// Prints roles, links, services and flows.
pub fn status(state_dir: &Path, args: &StatusArgs) -> anyhow::Result<()> {
    let mut answers = ask(state_dir, &Question::Status)?;
    let line = answers.next().context("the daemon hung up")??;
    if args.json {
        println!("{line}");
        return Ok(());
    }
    print!("{}", in_words(&serde_json::from_str(&line)?));
    Ok(())
}

/// Prints what happened, oldest first.
pub fn events(state_dir: &Path, args: &EventsArgs) -> anyhow::Result<()> {
    for line in ask(state_dir, &Question::Events { follow: args.follow })? {
        let line = line?;
        if args.json {
            println!("{line}");
            continue;
        }
        let event: Value = serde_json::from_str(&line)?;
        println!("{}  {}", text(&event["time"]), text(&event["text"]));
    }
    Ok(())
}

/// Makes the other node primary without waiting for a failure.
pub fn switchover(state_dir: &Path) -> anyhow::Result<()> {
    let mut answers = ask(state_dir, &Question::Switchover)?;
    let answer: Value = serde_json::from_str(&answers.next().context("the daemon hung up")??)?;
    if answer["ok"] != true {
        bail!("no switchover: {}", text(&answer["why"]));
    }
    println!("the other node takes over");
    Ok(())
}

fn ask(
    state_dir: &Path,
    question: &Question,
) -> anyhow::Result<impl Iterator<Item = std::io::Result<String>>> {
    let path = state_dir.join(SOCKET);
    let mut stream = UnixStream::connect(&path).with_context(|| {
        format!("no daemon answers on {}; is it running, and are you root?", path.display())
    })?;
    writeln!(stream, "{}", serde_json::to_string(question)?)?;
    Ok(BufReader::new(stream).lines())
}

fn in_words(status: &Value) -> String {
    use std::fmt::Write;

    let mut out = String::new();
    let mut line = |label: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{label:<12}{value}");
    };
    line("node", format!("{} of cluster {}", text(&status["node"]), text(&status["cluster"])));
    let role = |of: &Value| {
        let protection = match (text(&of["role"]).as_str(), of["duplex"] == true) {
            ("primary", true) => ", duplex",
            ("primary", false) => ", simplex: new connections are NOT protected",
            _ => "",
        };
        format!("{}{protection}, epoch {}", text(&of["role"]), of["epoch"])
    };
    let peer = &status["peer"];
    let alive = |role: &Value| if peer["alive"] == true { text(role) } else { "silent".to_owned() };
    match status["shares"].as_array() {
        None => {
            line("role", role(status));
            line("peer", format!("{}: {}", text(&peer["name"]), alive(&peer["role"])));
        }
        Some(shares) => {
            for share in shares {
                let home = if share["home"] == true { " (its own)" } else { "" };
                let peer = format!("{}: {}", text(&peer["name"]), alive(&share["peer_role"]));
                line(
                    &format!("share {}", share["share"]),
                    format!("{}{home}; {peer}", role(share)),
                );
            }
        }
    }
    let link = |name: &str| match status["links"][name] == true {
        true => format!("{name} up"),
        false => format!("{name} DOWN"),
    };
    line("links", format!("{}, {}", link("service"), link("cluster")));
    for service in status["services"].as_array().into_iter().flatten() {
        let addresses: Vec<String> =
            service["addresses"].as_array().into_iter().flatten().map(text).collect();
        let listening = match (&service["listening"], &service["multipath"]) {
            (Value::Bool(true), Value::Bool(true)) => "listening with MULTIPATH TCP, unprotected",
            (Value::Bool(true), _) => "listening",
            _ => "NOT listening",
        };
        line(
            "service",
            format!(
                "{} ({}) on {}: {listening}",
                text(&service["name"]),
                text(&service["scheme"]),
                addresses.join(", ")
            ),
        );
    }
    let flows = &status["flows"];
    line(
        "flows",
        format!(
            "{} tracked, {} being adopted, {} adopted, {} simplex",
            flows["tracked"], flows["adopting"], flows["open"], flows["simplex"]
        ),
    );
    let journal = &status["journal"];
    line("journal", format!("{} flows, {} bytes", journal["flows"], journal["bytes"]));
    let takeover = &status["takeover"];
    if takeover["flows"] != 0 {
        line(
            "takeover",
            format!(
                "{} flows: {} adopted, {} reset, {} pending",
                takeover["flows"], takeover["adopted"], takeover["reset"], takeover["pending"]
            ),
        );
    }
    if let Some(steps) = status["takeover"]["steps"].as_object() {
        let at = |name: &str| steps[name]["boottime_ns"].as_u64();
        let promoted = at("promoted").unwrap_or_default();
        let since = |at: u64| (at as f64 - promoted as f64) / 1e6;
        let names = ["last_heard", "suspected", "promoted", "first_open", "last_open"];
        let steps: Vec<String> = names
            .into_iter()
            .filter_map(|name| {
                Some(format!("{} {:+.1} ms", name.replace('_', " "), since(at(name)?)))
            })
            .collect();
        line("steps", steps.join(", "));
    }
    for (reason, count) in status["resets"].as_object().into_iter().flatten() {
        line("resets", format!("{reason}: {count}"));
    }
    for (counter, count) in status["counters"].as_object().into_iter().flatten() {
        if *count != 0 {
            line("counter", format!("{counter}: {count}"));
        }
    }
    out
}

/// A string without its quotes, anything else as it stands.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_share_has_a_line_where_both_nodes_serve() {
        let share = |number: u32, role: &str, peer_role: &str| {
            json!({"share": number, "home": role == "primary", "role": role, "epoch": 3,
                "duplex": role == "primary", "peer_role": peer_role})
        };
        let shares = [share(0, "primary", "backup"), share(1, "backup", "primary")];
        let said = in_words(&json!({"peer": {"name": "b", "alive": true}, "shares": shares}));
        let first = "share 0     primary, duplex, epoch 3 (its own); b: backup\n";
        assert!(said.contains(first), "{said}");
        assert!(said.contains("share 1     backup, epoch 3; b: primary\n"), "{said}");
        let single = json!({"role": "primary", "duplex": false, "epoch": 1, "shares": null,
            "peer": {"name": "b", "alive": false}});
        let said = in_words(&single);
        assert!(said.contains("NOT protected, epoch 1\npeer        b: silent\n"), "{said}");
    }
}
