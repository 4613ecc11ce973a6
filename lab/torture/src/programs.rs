//! The programs that are started as processes of their own.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// This program.
pub(crate) fn this() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own file")
}

/// `collie`, beside this program.
pub(crate) fn collie() -> anyhow::Result<PathBuf> {
    let this = this()?;
    let collie = this.with_file_name("collie");
    let is_release = this.parent().is_some_and(|dir| dir.ends_with("release"));
    let more = if is_release { " --release" } else { "" };
    ensure!(
        Path::exists(&collie),
        "{} is not there: `cargo build{more} --bin collie` builds it",
        collie.display()
    );
    Ok(collie)
}
