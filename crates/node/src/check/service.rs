//! The key, the state directory, and what the services need to be started.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use control::Psk;
use nix::unistd::{AccessFlags, User, access};

use super::Context;
use crate::sock_diag;

pub(super) fn key(context: &mut Context<'_>) {
    let Some(config) = context.config else { return };
    let path = &config.node.key_file;
    match Psk::load(path) {
        Ok(_) => context.ok(format!("the key file {} is private and sound", path.display())),
        Err(error) => {
            // The error says what is wrong and, after its semicolon, how to mend it.
            let text = error.to_string();
            let (what, mend) = text.split_once("; ").unwrap_or((&text, "make a new key"));
            let source = std::error::Error::source(&error);
            let source = source.map(|source| format!(": {source}")).unwrap_or_default();
            let what = format!("{what}{source}");
            context.fail(what, "nodes know each other by it", mend);
        }
    }
}

pub(super) fn state_dir(context: &mut Context<'_>) {
    let Some(config) = context.config else { return };
    let dir = &config.node.state_dir;
    // The daemon makes what is missing below a directory that exists.
    let existing = dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let may = AccessFlags::W_OK | AccessFlags::X_OK;
    let usable = if existing.is_dir() { access(existing, may) } else { Err(nix::Error::ENOTDIR) };
    match usable {
        Ok(()) => context.ok(format!("the state directory {} can be used", dir.display())),
        Err(error) => context.fail(
            format!("the state directory {} cannot be used: {error}", dir.display()),
            "a restarted daemon finds its servers by what it keeps there",
            "make it writable for the daemon, or write another one as node.state_dir",
        ),
    }
}

pub(super) fn users(context: &mut Context<'_>) {
    let Some(config) = context.config else { return };
    for service in &config.services {
        let Some(user) = &service.user else { continue };
        match User::from_name(user) {
            Ok(Some(_)) => context.ok(format!("the user {user} of {} exists", service.name)),
            Ok(None) | Err(_) => context.fail(
                format!("there is no user {user}, as {} wants", service.name),
                "the server is started as this user",
                format!("adduser --system {user}, or write another user"),
            ),
        }
    }
}

pub(super) fn commands(context: &mut Context<'_>) {
    let Some(config) = context.config else { return };
    for service in &config.services {
        let name = &service.name;
        if let Some(dir) = service.workdir.as_ref().filter(|dir| !dir.is_dir()) {
            context.fail(
                format!("{name}: there is no directory {}", dir.display()),
                "the server is started in it",
                "make it, or write another workdir",
            );
        }
        let Some(program) = service.command.as_ref().map(|words| &words[0]) else { continue };
        let workdir = service.workdir.as_deref().unwrap_or(Path::new("/"));
        match find(program, workdir) {
            Some(path) => context.ok(format!("{name} runs {}", path.display())),
            None => context.fail(
                format!("{name}: there is no program {program}"),
                "the server is started by this command",
                "install it, or write the whole path of the program",
            ),
        }
    }
}

/// The file that a command's first word stands for.
fn find(program: &str, workdir: &Path) -> Option<PathBuf> {
    let runs = |path: &PathBuf| {
        fs::metadata(path)
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return Some(workdir.join(program)).filter(runs);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(runs)
}

pub(super) fn ports(context: &mut Context<'_>) {
    let Some(config) = context.config else { return };
    // The probe of sock_diag has reported why, if this fails.
    let Ok(listeners) = sock_diag::listeners() else { return };
    for service in config.services.iter().filter(|service| service.command.is_some()) {
        for ip in &service.addresses {
            let address = SocketAddr::new(*ip, service.port);
            if listeners.iter().any(|listener| listener.accepts(address)) {
                context.warn(
                    format!("something listens on {address} of {} already", service.name),
                    "the server that the daemon starts will not be able to",
                    format!("stop it: `ss -ltnp sport = :{}` names it", service.port),
                );
            }
        }
    }
}

/// How a server is made to listen with plain TCP.
pub(crate) const MULTIPATH_MEND: &str = "start it without: nginx without `multipath` in `listen`, \
     a Go program with GODEBUG=multipathtcp=0 in its environment, any server with sysctl \
     net.mptcp.enabled=0";

/// Of servers that run: those of the operator's own, or all beside a running daemon.
pub(super) fn multipath(context: &mut Context<'_>) {
    let Some(config) = context.config else { return };
    let Ok(listeners) = sock_diag::listeners() else { return };
    for service in &config.services {
        let accepted = |listener: &&sock_diag::Listener| {
            let mut addresses = service.addresses.iter();
            addresses.any(|&ip| listener.accepts(SocketAddr::new(ip, service.port)))
        };
        let mut found = listeners.iter().filter(accepted).peekable();
        if found.peek().is_none() {
            continue;
        }
        match found.any(|listener| listener.multipath) {
            true => context.warn(
                format!("the server of {} listens with Multipath TCP", service.name),
                "the kernel adopts no connections for such a listener: all are reset at a takeover",
                MULTIPATH_MEND,
            ),
            false => context.ok(format!("the server of {} listens with plain TCP", service.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_they_will_be_run() {
        let root = Path::new("/");
        assert!(find("sh", root).is_some());
        assert_eq!(find("/bin/sh", root), Some("/bin/sh".into()));
        assert_eq!(find("./sh", Path::new("/bin")), Some("/bin/./sh".into()));
        assert_eq!(find("no-such-program", root), None);
        assert_eq!(find("/etc/passwd", root), None, "not executable");
        assert_eq!(find("/bin", root), None, "not a file");
    }
}
