//! Each test writes a mistake into a correct file and looks at what the operator is told.

use http::Treatment;
use replies::Excess;

use super::*;

const EXAMPLE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/steadfast.toml"));

const MESSAGE_EXAMPLE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/message.toml"));

const SMALL: &str = r#"[node]
name = "a"
peer = "b"
cluster = "c"
service_interface = "svc0"
cluster_interface = "clu0"
address = { service = "10.0.0.1", cluster = "10.1.0.1" }
peer_address = { service = "10.0.0.2", cluster = "10.1.0.2" }
key_file = "/k"
[[service]]
name = "www"
address = "10.0.0.100"
port = 80
"#;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("f.toml"))
}

fn mistakes(text: &str) -> Vec<Mistake> {
    match parse(text) {
        Err(ConfigError::Wrong { mistakes, .. }) => mistakes,
        other => panic!("accepted:\n{text}\nas {other:?}"),
    }
}

/// What the scheme `message` reads in the file of a service that is complete otherwise.
fn message(keys: &str) -> Service {
    let text = format!("{SMALL}scheme = \"message\"\n{keys}\n");
    parse(&text).unwrap_or_else(|error| panic!("{error}")).services.remove(0)
}

/// Replaces a line of [`SMALL`] (or appends to it) and expects exactly one mistake, reported at
/// `key` in the line written, and speaking of `says`.
#[track_caller]
fn refused(line: &str, instead: &str, key: &str, says: &str) {
    let text = if line.is_empty() {
        format!("{SMALL}{instead}\n")
    } else {
        assert!(SMALL.contains(line), "no such line: {line}");
        SMALL.replacen(line, instead, 1)
    };
    let found = mistakes(&text);
    assert_eq!(found.len(), 1, "{found:#?}");
    let mistake = &found[0];
    let message = format!("{}; {}", mistake.what, mistake.mend);
    assert_eq!(mistake.key, key, "{message}");
    assert!(message.contains(says), "{message:?} does not say {says:?}");
    let written = text.lines().nth(mistake.line - 1).unwrap_or("");
    let last = instead.lines().last().unwrap_or("");
    assert_eq!(written, last, "wrong line {}", mistake.line);
}

#[test]
fn the_documented_example_is_accepted_and_says_what_it_says() {
    let config = parse(EXAMPLE).unwrap();
    assert_eq!(config.node.name, "a");
    assert_eq!(config.node.peer_address.cluster, IpAddr::from([10, 78, 0, 12]));
    assert_eq!(config.node.detection(), Duration::from_millis(100));
    assert_eq!(config.budget.ring_mib, 64);
    let www = &config.services[0];
    assert_eq!(www.addresses.len(), 2);
    assert_eq!(www.command.as_ref().unwrap().last().unwrap(), "daemon off;");
    assert_eq!(www.environment["TZ"], "UTC");
}

#[test]
fn the_documented_example_of_message_has_both_schemes() {
    let config = parse(MESSAGE_EXAMPLE).unwrap();
    let schemes: Vec<_> = config.services.iter().map(|service| service.scheme).collect();
    assert_eq!(schemes, [Scheme::Message, Scheme::Track]);
    assert!(config.services[1].message.is_none() && config.services[1].policy().is_none());
    let policy = config.services[0].policy().unwrap();
    assert_eq!(policy.routes.treatment("GET", "/static/site.css"), Treatment::Regenerate);
    assert_eq!(policy.routes.treatment("POST", "/static/site.css"), Treatment::Log);
}

#[test]
fn a_written_configuration_reads_back_the_same() {
    let message = format!("{SMALL}scheme = \"message\"\nlong_replies = \"regenerate\"\n");
    for text in [EXAMPLE, MESSAGE_EXAMPLE, SMALL, &message] {
        let config = parse(text).unwrap();
        assert_eq!(parse(&config.to_toml()).unwrap(), config);
    }
}

#[test]
fn what_is_left_out_takes_its_default() {
    let config = parse(SMALL).unwrap();
    assert_eq!(config.node.control_port, 7077);
    assert_eq!(config.node.detection_ms, 100);
    assert_eq!(config.node.state_dir, Path::new("/run/steadfast"));
    let budget = Budget { total_mib: 1024, ring_mib: 64, max_flows: 65536, replies_mib: 512 };
    assert_eq!(config.budget, budget);
    assert_eq!(config.services[0].command, None);
    assert_eq!(config.services[0].message, None);
    let policy = message("").policy().unwrap();
    assert_eq!((policy.reply_bytes, policy.flow_bytes), (1 << 20, 8 << 20));
    assert_eq!(policy.excess, Excess::Stream);
    assert_eq!(policy.routes.treatment("GET", "/"), Treatment::Log);
}

#[test]
fn the_keys_of_message_become_the_policy_of_the_reply_log() {
    let policy = message(
        "reply_budget_kib = 16384\nlong_replies = \"regenerate\"\n\
         regenerate = [\"GET /static/**\", \"*  /ping\"]",
    )
    .policy()
    .unwrap();
    assert_eq!((policy.reply_bytes, policy.excess), (16 << 20, Excess::Regenerate));
    assert!(policy.flow_bytes > 16 << 20);
    for (method, target, treatment) in [
        ("GET", "/static/a/b", Treatment::Regenerate),
        ("HEAD", "/static/a/b", Treatment::Log),
        ("POST", "/ping", Treatment::Regenerate),
    ] {
        assert_eq!(policy.routes.treatment(method, target), treatment, "{method} {target}");
    }
}

#[test]
fn what_message_cannot_use_is_refused() {
    let with = |line: &str| format!("scheme = \"message\"\n{line}");
    for (line, key, says) in [
        ("reply_budget_kib = 15", "reply_budget_kib", "from 16 to 262144"),
        ("reply_budget_kib = 262145", "reply_budget_kib", "from 16 to 262144"),
        ("reply_budget_kib = 131072", "reply_budget_kib", "raise budget.replies_mib to 897"),
        ("long_replies = \"streem\"", "long_replies", "did you mean \"stream\"?"),
        ("long_replies = \"no\"", "long_replies", "write \"stream\" or \"regenerate\""),
        ("long_replies = 1", "long_replies", "expected a string"),
        ("regenerate = \"GET /\"", "regenerate", "a list of strings"),
        ("regenerate = [\"GET /a\", \"/b\"]", "regenerate[1]", "is not a method; write one such"),
        ("regenerate = [\"GET\"]", "regenerate[0]", "does not begin with \"/\""),
        ("regenerate = [\"GET static/**\"]", "regenerate[0]", "such as \"GET /static/**\""),
        ("regenerate = [\"GET /[a\"]", "regenerate[0]", "unclosed character class"),
    ] {
        refused("", &with(line), &format!("service[0].{key}"), says);
    }
    let small = "key_file = \"/k\"\n[budget]\nreplies_mib = 0";
    refused("key_file = \"/k\"", small, "budget.replies_mib", "from 1 to");
}

#[test]
fn keys_of_message_need_the_scheme() {
    for (line, key) in [
        ("reply_budget_kib = 1024", "reply_budget_kib"),
        ("long_replies = \"stream\"", "long_replies"),
        ("regenerate = []", "regenerate"),
    ] {
        let key = format!("service[0].{key}");
        refused("", line, &key, "add scheme = \"message\"");
        refused("", &format!("scheme = \"track\"\n{line}"), &key, "does not hold replies");
        // A mistake in the scheme is one mistake, not two.
        let found = mistakes(&format!("{SMALL}scheme = \"mesage\"\n{line}\n"));
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].mend.contains("did you mean \"message\"?"), "{found:#?}");
    }
}

#[test]
fn a_mistake_is_shown_with_file_line_column_and_key() {
    let text = SMALL.replace("name = \"www\"\n", "name = \"www\"\n  prot = 80\n");
    let error = parse(&text).unwrap_err().to_string();
    assert_eq!(error, "f.toml:12:3: service[0].prot: no such key; did you mean `port`?");
}

#[test]
fn all_mistakes_of_a_pass_are_reported_in_the_order_of_the_file() {
    let text = SMALL.replace("peer = \"b\"", "pear = 1").replace("port = 80", "port = \"80\"");
    let found = mistakes(&text);
    let keys: Vec<_> = found.iter().map(|mistake| mistake.key.as_str()).collect();
    assert_eq!(keys, ["node.peer", "node.pear", "service[0].port"]);
}

#[test]
fn a_file_that_is_not_toml_is_refused_with_its_line() {
    let found = mistakes("[node]\nname = \"a\nport");
    assert_eq!((found[0].line, found[0].key.as_str()), (2, ""));
    assert!(found[0].what.starts_with("not TOML"), "{found:?}");
    assert_eq!(mistakes("\u{0}").len(), 1);
}

#[test]
fn an_empty_file_names_what_is_missing() {
    let keys: Vec<_> = mistakes("").into_iter().map(|mistake| mistake.key).collect();
    for key in ["node.name", "node.peer", "node.key_file", "node.address.service"] {
        assert!(keys.iter().any(|k| k == key), "{key} is not in {keys:?}");
    }
    let without = SMALL.split("[[service]]").next().unwrap();
    assert!(mistakes(without)[0].what.contains("no service"));
}

#[test]
fn values_of_the_wrong_kind_or_size_are_refused() {
    refused("name = \"a\"", "name = 5", "node.name", "expected a string, found integer");
    refused("name = \"a\"", "name = \"a b\"", "node.name", "plain name");
    refused("name = \"a\"", "name = \"\"", "node.name", "empty");
    refused("port = 80", "port = 0", "service[0].port", "from 1 to 65535");
    refused("port = 80", "port = 99999999999999999999", "service[0].port", "");
    refused("key_file = \"/k\"", "key_file = \"k\"", "node.key_file", "absolute");
    refused("key_file = \"/k\"", "key_file = \"/k\"\ndetection_ms = 5", "node.detection_ms", "20");
    refused("key_file = \"/k\"", "key_file = \"/k\"\nstate_dir = 1", "node.state_dir", "string");
    let long = "service_interface = \"sixteen-letters0\"";
    refused("service_interface = \"svc0\"", long, "node.service_interface", "15");
    refused("", "[budget]\nring_mib = 48", "budget.ring_mib", "write 32 or 64");
    refused("", "command = \"nginx\"", "service[0].command", "a list of strings");
    refused("", "command = []", "service[0].command", "names no program");
    refused("", "command = [\"x\"]\nenvironment = { A = 1 }", "service[0].environment.A", "");
}

#[test]
fn what_is_not_built_yet_is_refused_by_name() {
    for scheme in ["replay", "checkpoint"] {
        let line = format!("scheme = \"{scheme}\"");
        refused("", &line, "service[0].scheme", "not built yet");
    }
    refused("", "scheme = \"trak\"", "service[0].scheme", "did you mean \"track\"?");
    let after = "key_file = \"/k\"";
    refused(after, "key_file = \"/k\"\narbiter = \"etcd\"", "node.arbiter", "not built yet");
    refused(after, "key_file = \"/k\"\narbiter = \"dice\"", "node.arbiter", "no arbiter");
}

#[test]
fn addresses_that_no_other_host_can_reach_are_refused() {
    let line = "address = \"10.0.0.100\"";
    for (address, says) in [
        ("127.0.0.1", "never leaves"),
        ("0.0.0.0", "every address"),
        ("224.0.0.1", "group"),
        ("fe80::1", "interface"),
        ("::ffff:10.0.0.1", "written as IPv6"),
        ("10.0.0.100/24", "prefix"),
        ("www", "not an IP address"),
    ] {
        refused(line, &format!("address = \"{address}\""), "service[0].address", says);
    }
    refused(line, "address = [\"10.0.0.9\", \"x\"]", "service[0].address[1]", "not an IP address");
    refused(line, "address = []", "service[0].address", "address to connect to");
}

#[test]
fn contradictions_are_refused_where_they_stand() {
    let second = "[[service]]\nname = \"two\"\nport = 80\n";
    refused("", &format!("{second}address = \"10.0.0.100\""), "service[1].address", "\"www\"");
    let twin = "[[service]]\naddress = \"10.0.0.100\"\nport = 81\nname = \"www\"";
    refused("", twin, "service[1].name", "line 11");
    refused("peer = \"b\"", "peer = \"a\"", "node.peer", "both called");
    refused("", "user = \"nobody\"", "service[0].user", "needs a command");
    let address = "address = \"10.0.0.100\"";
    refused(address, "address = \"10.0.0.2\"", "service[0].address", "node.peer_address.service");
    let doubled = "address = [\"10.0.0.7\", \"10.0.0.7\"]";
    refused(address, doubled, "service[0].address[1]", "twice");
    let peer = "peer_address = { service = \"10.0.0.2\", cluster = \"10.1.0.2\" }";
    let other = "peer_address = { service = \"fd00::2\", cluster = \"10.1.0.2\" }";
    refused(peer, other, "node.peer_address.service", "different families");
    let own = "peer_address = { service = \"10.0.0.1\", cluster = \"10.1.0.2\" }";
    refused(peer, own, "node.peer_address.service", "our own");
    let after = "key_file = \"/k\"";
    let long = "key_file = \"/k\"\ndetection_ms = 100\nqueue_ms = 51";
    refused(after, long, "node.queue_ms", "at most 50");
    let short = "key_file = \"/k\"\ndetection_ms = 1000\nstartup_wait_ms = 1500";
    refused(after, short, "node.startup_wait_ms", "at least 2000");
    refused(after, "key_file = \"/k\"\nroles = \"both\"", "node.roles", "dual");
    let preferred = "key_file = \"/k\"\nroles = \"dual\"\nprefer_primary = true";
    refused(after, preferred, "node.prefer_primary", "remove");
    refused("", "flow_budget_mib = 2048", "service[0].flow_budget_mib", "1024 MiB");
}

#[test]
fn one_interface_may_carry_both_links_with_one_address() {
    let text = SMALL.replace("clu0", "svc0").replace("10.1.0.", "10.0.0.");
    parse(&text).unwrap();
    let found = mistakes(&SMALL.replace("10.1.0.", "10.0.0."));
    assert!(found.iter().all(|mistake| mistake.what.contains("two interfaces")), "{found:?}");
}
