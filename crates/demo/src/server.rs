//! Four servers that know nothing of Steadfast, and the configuration each needs to run in
//! the foreground with all its files in one folder.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;

use crate::find;
use crate::site::Site;

/// A server to protect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// An event loop in each of two workers; replies go out by sendfile.
    Nginx,
    /// Processes with threads (`mpm_event`). Runs the programs in the site's folder [`PROGRAMS`], if there
    /// is one.
    Apache,
    /// Python's `http.server`: a thread for each connection, replies by send.
    Python,
    /// `busybox httpd`: a static binary that forks for each connection.
    Busybox,
}

/// Where a site may have programs that make replies (CGI, RFC 3875).
pub const PROGRAMS: &str = "cgi-bin";

/// Where a server is about to run.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The node's name.
    pub node: &'a str,
    /// A folder for configuration, logs and pid files, the same for both nodes.
    pub dir: &'a Path,
    /// What to serve.
    pub site: &'a Site,
    /// The service's address.
    pub at: SocketAddr,
}

impl Server {
    /// All of them.
    pub const ALL: [Server; 4] = [Server::Nginx, Server::Apache, Server::Python, Server::Busybox];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Server::Nginx => "nginx",
            Server::Apache => "apache",
            Server::Python => "python",
            Server::Busybox => "busybox",
        }
    }

    /// Whether it answers several requests on one connection.
    pub fn keeps_alive(self) -> bool {
        matches!(self, Server::Nginx | Server::Apache)
    }

    /// Writes its configuration and returns its command line.
    ///
    /// # Errors
    /// It is not on this machine, or its configuration cannot be written.
    pub fn command(self, place: &Place) -> anyhow::Result<Vec<String>> {
        match self {
            Server::Nginx => nginx(place),
            Server::Apache => apache(place),
            Server::Python => python(place),
            Server::Busybox => busybox(place),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Server {
    type Err = String;

    fn from_str(text: &str) -> Result<Server, String> {
        let known = || Server::ALL.map(Server::name).join(", ");
        let found = Server::ALL.into_iter().find(|s| s.name() == text);
        found.ok_or_else(|| format!("no server \"{text}\"; there are {}", known()))
    }
}

fn nginx(place: &Place) -> anyhow::Result<Vec<String>> {
    let program = find::program("nginx", "nginx")?;
    let (dir, node, port) = (place.dir.display(), place.node, place.at.port());
    let root = place.site.root().display();
    // Connections wait idle for as long as the demo likes; the temporary folders are those
    // that the build names, which need not exist on this machine.
    let temp: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("  {kind}_temp_path {dir}/nginx-{node}.tmp/{kind};\n"))
        .concat();
    let text = format!(
        "daemon off;
user nobody {group};
worker_processes 2;
worker_rlimit_nofile 65536;
pid {dir}/nginx-{node}.pid;
error_log {dir}/nginx-{node}.log info;
events {{ worker_connections 16384; }}
http {{
  default_type application/octet-stream;
  access_log off;
  sendfile on;
  keepalive_timeout 1h;
  keepalive_requests 1000000;
  server {{
    listen {port} backlog=4096;
    listen [::]:{port} backlog=4096 ipv6only=on;
    root {root};
  }}
{temp}}}
",
        group = group_of_nobody(),
    );
    let temp_dir = place.dir.join(format!("nginx-{node}.tmp"));
    fs::create_dir_all(&temp_dir)
        .with_context(|| format!("cannot create {}", temp_dir.display()))?;
    let config = write(place, "nginx", &text)?;
    // -e: the log that the build names may not be writable, and is opened first.
    let log = place.dir.join(format!("nginx-{node}.log"));
    Ok(words([&program, Path::new("-e"), &log, Path::new("-c"), &config]))
}

fn apache(place: &Place) -> anyhow::Result<Vec<String>> {
    let program = find::program("apache2", "apache2-bin")?;
    let modules = apache_modules(&program)?;
    let (dir, node, port) = (place.dir.display(), place.node, place.at.port());
    let root = place.site.root().display();
    let modules = modules.display();
    let programs = match place.site.root().join(PROGRAMS).is_dir() {
        // A program's Content-Length is not believed unless it is asked for.
        true => format!(
            "LoadModule cgid_module {modules}/mod_cgid.so
LoadModule alias_module {modules}/mod_alias.so
LoadModule env_module {modules}/mod_env.so
SetEnv ap_trust_cgilike_cl yes
ScriptSock {dir}/apache-{node}.cgi
ScriptAlias /{PROGRAMS}/ {root}/{PROGRAMS}/
"
        ),
        false => String::new(),
    };
    let text = format!(
        "ServerRoot {dir}
ServerName {node}
DefaultRuntimeDir {dir}
PidFile {dir}/apache-{node}.pid
ErrorLog {dir}/apache-{node}.log
Mutex pthread
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
Listen {port}
ListenBackLog 4096
User #{nobody}
Group #{nobody}
ServerLimit 8
ThreadsPerChild 64
MaxRequestWorkers 512
Timeout 300
KeepAliveTimeout 3600
MaxKeepAliveRequests 0
DocumentRoot {root}
<Directory {root}>
  Require all granted
</Directory>
{programs}",
        nobody = NOBODY,
    );
    let config = write(place, "apache", &text)?;
    // An Apache that was killed leaves its number behind, and the next one does not start if another
    // process has that number by then.
    let forget = ["/bin/sh", "-c", "rm -f \"$0\"; exec \"$@\""].map(Path::new);
    let pid_file = place.dir.join(format!("apache-{node}.pid"));
    let apache = [&program, Path::new("-f"), &config, Path::new("-D"), Path::new("FOREGROUND")];
    Ok(words(forget.into_iter().chain([pid_file.as_path()]).chain(apache)))
}

/// Next to an unpacked program, or where the package puts them.
fn apache_modules(program: &Path) -> anyhow::Result<PathBuf> {
    let near = program.ancestors().nth(2).map(|usr| usr.join("lib/apache2/modules"));
    let usual = [PathBuf::from("/usr/lib/apache2/modules")];
    let mut places = near.into_iter().chain(usual);
    let found = places.find(|dir| dir.join("mod_mpm_event.so").exists());
    found.context("apache2 has no mod_mpm_event.so: install the package apache2-bin")
}

fn python(place: &Place) -> anyhow::Result<Vec<String>> {
    let program = find::program("python3", "python3")?;
    let (port, ip) = (place.at.port().to_string(), place.at.ip().to_string());
    let args = ["-m", "http.server", &port, "--bind", &ip, "--directory"].map(Path::new);
    let mut command = words([program.as_path()].into_iter().chain(args));
    command.extend(words([place.site.root()]));
    Ok(command)
}

fn busybox(place: &Place) -> anyhow::Result<Vec<String>> {
    let program = find::program("busybox", "busybox-static")?;
    let at = place.at.to_string();
    let args = ["httpd", "-f", "-p", &at, "-h"].map(Path::new);
    let mut command = words([program.as_path()].into_iter().chain(args));
    command.extend(words([place.site.root()]));
    Ok(command)
}

const NOBODY: u32 = 65534;

/// Debian's nobody is in nogroup, others' in nobody.
fn group_of_nobody() -> String {
    let group = nix::unistd::Group::from_gid(NOBODY.into()).ok().flatten();
    group.map_or("nogroup".to_owned(), |g| g.name)
}

fn write(place: &Place, server: &str, text: &str) -> anyhow::Result<PathBuf> {
    let path = place.dir.join(format!("{server}-{}.conf", place.node));
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn words<'a>(parts: impl IntoIterator<Item = &'a Path>) -> Vec<String> {
    parts.into_iter().map(|p| p.display().to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for server in Server::ALL {
            assert_eq!(server.name().parse(), Ok(server));
        }
        let error = "iis".parse::<Server>().unwrap_err();
        assert!(error.contains("nginx, apache, python, busybox"), "{error}");
    }
}
