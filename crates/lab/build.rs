//! Compiles the wire's BPF program and generates its typed skeleton into `OUT_DIR`.

use std::{env, path::PathBuf};

use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "src/bpf/wire.bpf.c";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target architecture");
    // The kernel's <asm/…> headers live in the multiarch folder, which clang's BPF target ignores.
    let asm = format!("/usr/include/{arch}-linux-gnu");
    SkeletonBuilder::new()
        .source(SOURCE)
        // v3: atomic operations that return what was there before.
        .clang_args(["-Wall", "-Werror", "-mcpu=v3", "-idirafter", &asm])
        .build_and_generate(out.join("wire.skel.rs"))
        .expect("cannot compile the wire's BPF program: are clang and linux-libc-dev installed?");
    println!("cargo:rerun-if-changed={SOURCE}");
}
