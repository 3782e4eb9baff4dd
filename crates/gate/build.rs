//! Compiles the gate's programs with clang and generates their skeleton: the Rust types of every
//! map and global come from the C declarations.

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
        .source("src/bpf/gate.bpf.c")
        .clang_args([include.as_str(), "-Wall", "-Werror", "-Wno-unused-function"])
        .build_and_generate(out.join("gate.skel.rs"))
        .expect("the gate compiles (clang 14 or newer and libelf are needed: make deps)");
    println!("cargo:rerun-if-changed=src/bpf");
}
