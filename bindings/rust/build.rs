//! Tells the linker where libsatchel lies: in the folder SATCHEL_LIB_DIR, or where pkg-config finds it.

use std::{env, process::Command};

fn main() {
    println!("cargo:rerun-if-env-changed=SATCHEL_LIB_DIR");
    println!("cargo:rustc-link-lib=dylib=satchel");
    if let Ok(folder) = env::var("SATCHEL_LIB_DIR") {
        println!("cargo:rustc-link-search=native={folder}");
    } else if let Ok(told) = Command::new("pkg-config").args(["--libs-only-L", "satchel"]).output() {
        for word in String::from_utf8_lossy(&told.stdout).split_whitespace() {
            println!("cargo:rustc-link-search=native={}", word.trim_start_matches("-L"));
        }
    }
}
