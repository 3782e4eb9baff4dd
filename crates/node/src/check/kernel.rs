//! What the kernel's BPF must be able to do.

use libbpf_rs::libbpf_sys as sys;

use super::Context;
use super::bpf::{Btf, load, map};

const NEWER: &str = "use a newer kernel; 6.18 is the one that was tested";
const BPF_OPTIONS: &str = "use a kernel built with CONFIG_BPF_SYSCALL, CONFIG_BPF_JIT, \
                           CONFIG_NET_CLS_ACT, CONFIG_CGROUP_BPF and CONFIG_BPF_STREAM_PARSER, \
                           and run as root";

pub(super) fn btf(context: &mut Context<'_>) {
    match Btf::of_kernel() {
        Ok(_) => context.ok("the kernel describes its types (BTF)"),
        Err(error) => context.fail(
            format!("the kernel does not describe its types (BTF): {error}"),
            "BPF programs are fitted to the kernel with it",
            "use a kernel built with CONFIG_DEBUG_INFO_BTF",
        ),
    }
}

pub(super) fn kfuncs(context: &mut Context<'_>) {
    let cookies = format!("{NEWER}, with CONFIG_SYN_COOKIES");
    let gate = "use Linux 6.16 or a newer one, or another scheme than \"message\"";
    let mut needed = vec![
        ("bpf_sk_assign_tcp_reqsk", "connections are adopted with it", cookies.as_str()),
        ("bpf_dynptr_from_skb", "segments are logged with it", NEWER),
    ];
    if context.holds_output() {
        let why = "held output is captured with it";
        needed.push(("bpf_probe_read_kernel_dynptr", why, gate));
        needed.push(("bpf_dynptr_copy", why, gate));
    }
    // Without BTF the probe before this one has failed.
    let Ok(btf) = Btf::of_kernel() else { return };
    for (name, why, mend) in needed {
        match btf.function(name) {
            Some(_) => context.ok(format!("the kernel has {name}")),
            None => context.fail(format!("the kernel has no {name}"), why, mend),
        }
    }
}

pub(super) fn programs(context: &mut Context<'_>) {
    let release = sys::BPF_CGROUP_INET_SOCK_RELEASE;
    let mut needed = vec![
        ("tc", sys::BPF_PROG_TYPE_SCHED_CLS, 0, 0, "segments are relayed and logged by one"),
        ("sockops", sys::BPF_PROG_TYPE_SOCK_OPS, 0, 1, "it sees the birth of adopted connections"),
        ("sk_msg", sys::BPF_PROG_TYPE_SK_MSG, 0, 1, "output that a client has is swallowed by one"),
        (
            "cgroup/sock_release",
            sys::BPF_PROG_TYPE_CGROUP_SOCK,
            release,
            1,
            "a server's crash is told from its close there",
        ),
    ];
    if context.holds_output() {
        let (kind, place) = (sys::BPF_PROG_TYPE_CGROUP_SKB, sys::BPF_CGROUP_INET_EGRESS);
        needed.push(("cgroup_skb/egress", kind, place, 1, "held output is refused by one"));
    }
    for (name, kind, place, verdict, why) in needed {
        match load(kind, place, verdict) {
            Ok(_) => context.ok(format!("{name} BPF programs can be loaded")),
            Err(error) => {
                let what = format!("a {name} BPF program cannot be loaded: {error}");
                context.fail(what, why, BPF_OPTIONS);
            }
        }
    }
}

pub(super) fn maps(context: &mut Context<'_>) {
    let ring_mib = context.config.map_or(1, |config| config.budget.ring_mib);
    let flows = context.config.map_or(1024, |config| config.budget.max_flows);
    match map(sys::BPF_MAP_TYPE_RINGBUF, (0, 0), ring_mib * 1024 * 1024) {
        Ok(_) => context.ok(format!("a BPF ring buffer of {ring_mib} MiB can be made")),
        Err(error) => context.fail(
            format!("a BPF ring buffer of {ring_mib} MiB cannot be made: {error}"),
            "client segments are logged through it",
            "lower budget.ring_mib, or give the host more memory; a service manager may limit it \
             (LimitMEMLOCK=, MemoryMax=)",
        ),
    }
    match map(sys::BPF_MAP_TYPE_SOCKHASH, (40, 8), flows) {
        Ok(_) => context.ok(format!("a BPF socket map for {flows} flows can be made")),
        Err(error) => context.fail(
            format!("a BPF socket map for {flows} flows cannot be made: {error}"),
            "it holds the connections whose output is watched",
            format!("lower budget.max_flows; {BPF_OPTIONS}"),
        ),
    }
}
