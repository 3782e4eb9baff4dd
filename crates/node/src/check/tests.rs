//! The list as a whole, on this host and with configurations that ask for the impossible.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;

#[test]
fn ids_are_unique() {
    let ids: BTreeSet<_> = PROBES.iter().map(|probe| probe.id).collect();
    assert_eq!(ids.len(), PROBES.len());
}

#[test]
fn without_a_configuration_only_the_host_is_checked() {
    let report = run(None);
    assert!(report.findings.iter().any(|finding| finding.id == "capabilities"));
    let about_config = ["interfaces", "key", "peer", "service-command"];
    assert!(report.findings.iter().all(|finding| !about_config.contains(&finding.id)));
    for finding in &report.findings {
        let mended = finding.level == Level::Ok || !finding.mend.is_empty();
        assert!(mended && !finding.what.is_empty(), "{finding:?}");
    }
}

#[test]
fn what_a_configuration_asks_for_and_the_host_lacks_is_named() {
    let text = r#"
[node]
name = "a"
peer = "b"
cluster = "c"
service_interface = "lo"
cluster_interface = "no-such-link"
address = { service = "192.0.2.1", cluster = "198.51.100.1" }
peer_address = { service = "192.0.2.2", cluster = "198.51.100.2" }
key_file = "/nonexistent/key"
state_dir = "/dev/null/nowhere"
[budget]
replies_mib = 4096
[[service]]
name = "www"
address = "192.0.2.100"
port = 80
command = ["no-such-program"]
user = "no-such-user"
workdir = "/nonexistent"
scheme = "message"
reply_budget_kib = 262144
"#;
    let config = Config::parse(text, Path::new("f.toml")).unwrap();
    let report = run(Some(&config));
    assert!(!report.ok);
    for (id, says) in [
        ("interfaces", "no interface no-such-link"),
        ("interfaces", "lo, the service interface, has no Ethernet address"),
        ("interfaces", "lo does not have 192.0.2.1"),
        ("send-buffer", "less than 671416320"),
        ("key", "/nonexistent/key"),
        ("state-dir", "/dev/null/nowhere"),
        ("service-user", "no-such-user"),
        ("service-command", "no-such-program"),
        ("service-command", "/nonexistent"),
    ] {
        let found = report.findings.iter().any(|finding| {
            finding.id == id && finding.level == Level::Fail && finding.what.contains(says)
        });
        assert!(found, "{id}: {says}\n{report}");
    }
    let text = report.to_string();
    assert!(text.contains("FAIL  www: there is no program no-such-program — "), "{text}");
    assert!(text.ends_with("to mend first."), "{text}");
}

/// A host with two good links, in a network namespace of a thread that ends with the test.
#[test]
fn links_are_checked_in_the_namespace_of_the_thread() {
    let checked = std::thread::spawn(|| {
        if nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).is_err() {
            eprintln!("not root: the links cannot be made");
            return;
        }
        ip("link add svc0 type veth peer name far0");
        ip("link add clu0 type veth peer name far1");
        ip("address add 192.0.2.11/24 dev svc0");
        ip("address add 198.51.100.11/24 dev clu0");
        ip("link set svc0 up");
        let text = include_str!("../../../../docs/examples/steadfast.toml")
            .replace("10.77.0.", "192.0.2.")
            .replace("10.78.0.", "198.51.100.");
        let config = Config::parse(&text, Path::new("f.toml")).unwrap();

        // Down, too narrow, strict, and with the service address in the wrong place.
        ip("link set clu0 mtu 1400");
        ip("address add 192.0.2.100/32 dev clu0");
        std::fs::write("/proc/sys/net/ipv4/conf/clu0/rp_filter", "1").unwrap();
        let wrong = failures(&config);
        assert_eq!(wrong, ["interfaces", "mtu", "rp-filter", "service-address"]);

        ip("link set clu0 mtu 1500 up");
        ip("address del 192.0.2.100/32 dev clu0");
        std::fs::write("/proc/sys/net/ipv4/conf/clu0/rp_filter", "2").unwrap();
        assert_eq!(failures(&config), [""; 0]);
    });
    checked.join().unwrap();
}

/// The kernel that the tests run on has all of it; `track` needs none of it.
#[test]
fn what_only_message_needs_is_looked_for_only_then() {
    let of = |text: &str| {
        let config = Config::parse(text, Path::new("f.toml")).unwrap();
        run(Some(&config)).findings
    };
    let message = of(include_str!("../../../../docs/examples/message.toml"));
    let track = of(include_str!("../../../../docs/examples/steadfast.toml"));
    for (id, says) in [
        ("send-buffer", "net.core.wmem_max"),
        ("kfuncs", "bpf_probe_read_kernel_dynptr"),
        ("kfuncs", "bpf_dynptr_copy"),
        ("bpf-programs", "cgroup_skb/egress"),
    ] {
        let looks = |findings: &[Finding]| {
            findings.iter().any(|finding| finding.id == id && finding.what.contains(says))
        };
        assert!(looks(&message), "{id}: {says}\n{message:#?}");
        assert!(!looks(&track), "{id}: {says}\n{track:#?}");
    }
}

fn ip(arguments: &str) {
    let words = arguments.split(' ');
    let status = std::process::Command::new("ip").args(words).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Which probes of the network fail.
fn failures(config: &Config) -> Vec<&'static str> {
    let mut context = Context { id: "", config: Some(config), findings: Vec::new() };
    for probe in PROBES {
        if ["interfaces", "mtu", "rp-filter", "service-address"].contains(&probe.id) {
            context.id = probe.id;
            (probe.run)(&mut context);
        }
    }
    let failed = context.findings.iter().filter(|finding| finding.level == Level::Fail);
    failed.map(|finding| finding.id).collect()
}
