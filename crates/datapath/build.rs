//! Compiles the data path with clang and generates its skeleton: the Rust types of every map and
//! global come from the C declarations, so nothing is mirrored by hand.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    // Debian keeps <asm/types.h> in a folder per architecture, which clang does not search when
    // it compiles for BPF.
    let include = format!("-I/usr/include/{arch}-linux-gnu");
    SkeletonBuilder::new()
        .source("src/bpf/datapath.bpf.c")
        .clang_args([include.as_str(), "-Wall", "-Werror", "-Wno-unused-function"])
        .build_and_generate(out.join("datapath.skel.rs"))
        .expect("the BPF data path compiles (clang 14 or newer and libelf are needed: make deps)");
    println!("cargo:rerun-if-changed=src/bpf");
}
