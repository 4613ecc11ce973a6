//! Power cuts after one injected failure: a Collie store on a file system that forgets, checked from outside.
//! `README.md` says what is looked at.

mod child;
mod judge;
mod machine;
mod parent;

use collie_independent_cuts::{disk, fuse, rng};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let life = || child::Life::from_args(args.get(1..).unwrap_or_default());
    let code = match args.first().map(String::as_str) {
        Some("child") => life().map_or(2, |life| child::run(&life)),
        Some("second") => life().map_or(2, |life| child::run_second(&life)),
        _ => parent::run(&args),
    };
    std::process::exit(code);
}
