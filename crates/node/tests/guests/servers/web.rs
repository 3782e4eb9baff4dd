//! Servers of files by HTTP: those of the demo, variants of them, and one in Go.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use demo::server::{self, Server as Demo};
use demo::site::Site;
use nix::sys::signal::Signal::{SIGQUIT, SIGTERM};

use super::{End, Place, Server, large, words};
use crate::guests::serving::{at_once, printed};

/// One that hands out the files of the site. Clients reach it by a URL like this.
fn of_files(command: Vec<String>, site: &Site, url: Url, end: End) -> Server {
    let file = large(site);
    let asks = url.clone();
    // Some listen, and stop listening, while they begin.
    let answers = move || asks.curl().arg("-fI").output().is_ok_and(|curl| curl.status.success());
    let serves = move || {
        at_once(|_| {
            for _ in 0..3 {
                assert!(printed(&mut url.curl()) == file, "it sends something else");
            }
        });
    };
    Server { command, answers: Box::new(answers), serves: Box::new(serves), end }
}

/// Where the site's large file is.
#[derive(Clone)]
struct Url {
    at: SocketAddr,
    /// The certificate that clients trust.
    certificate: Option<String>,
}

impl Url {
    fn http(place: &Place) -> Url {
        Url { at: place.at, certificate: None }
    }

    fn curl(&self) -> Command {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "30"]);
        let scheme = match &self.certificate {
            Some(certificate) => {
                curl.arg("--cacert").arg(certificate);
                "https"
            }
            None => "http",
        };
        curl.arg(format!("{scheme}://{}{}", self.at, Site::LARGE));
        curl
    }
}

/// A server of the demo's, with what it serves.
fn of_demo(demo: Demo, place: &Place) -> (Vec<String>, Site) {
    let site = place.site();
    let at = server::Place { node: "n", dir: &place.work(), site: &site, at: place.at };
    let command = demo.command(&at).unwrap_or_else(|why| panic!("cannot set {demo} up: {why:#}"));
    (command, site)
}

fn as_in_demo(demo: Demo, place: &Place, end: End) -> Server {
    let (command, site) = of_demo(demo, place);
    of_files(command, &site, Url::http(place), end)
}

pub fn nginx(place: &Place) -> Server {
    as_in_demo(Demo::Nginx, place, End::with(SIGQUIT, 0))
}

pub fn apache(place: &Place) -> Server {
    as_in_demo(Demo::Apache, place, End::with(SIGTERM, 0))
}

pub fn python(place: &Place) -> Server {
    as_in_demo(Demo::Python, place, End::by(SIGTERM))
}

pub fn busybox(place: &Place) -> Server {
    as_in_demo(Demo::Busybox, place, End::by(SIGTERM))
}

/// The demo's nginx, with a key of its own.
pub fn nginx_tls(place: &Place) -> Server {
    let (command, site) = of_demo(Demo::Nginx, place);
    let (key, certificate) = (place.work().join("key"), place.work().join("certificate"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt"]);
    openssl.args(["ec_paramgen_curve:P-256", "-subj", "/CN=steadfast", "-addext"]);
    openssl.arg(format!("subjectAltName=IP:{}", place.at.ip()));
    printed(openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate));
    let port = place.at.port();
    let (key, certificate) = (key.display().to_string(), certificate.display().to_string());
    let with_key = format!(
        "listen {port} ssl backlog=4096;\n\
         ssl_certificate {certificate};\n\
         ssl_certificate_key {key};"
    );
    change(place, "nginx-n.conf", &[(&format!("listen {port} backlog=4096;"), &with_key)]);
    let url = Url { at: place.at, certificate: Some(certificate) };
    of_files(command, &site, url, End::with(SIGQUIT, 0))
}

/// The demo's Apache, with a process for each connection.
pub fn apache_prefork(place: &Place) -> Server {
    let (command, site) = of_demo(Demo::Apache, place);
    let changes = [
        ("mpm_event_module", "mpm_prefork_module"),
        ("mod_mpm_event.so", "mod_mpm_prefork.so"),
        ("ThreadsPerChild 64\n", "StartServers 4\n"),
        ("MaxRequestWorkers 512", "MaxRequestWorkers 8"),
    ];
    change(place, "apache-n.conf", &changes);
    of_files(command, &site, Url::http(place), End::with(SIGTERM, 0))
}

/// What the demo has written, with other words.
fn change(place: &Place, file: &str, changes: &[(&str, &str)]) {
    let path = place.work().join(file);
    let mut text = fs::read_to_string(&path).unwrap_or_else(|why| panic!("no {file}: {why}"));
    for (from, to) in changes {
        assert!(text.contains(from), "{file} has no {from:?}:\n{text}");
        text = text.replace(from, to);
    }
    place.file(file, text);
}

/// A program in Go: its runtime has threads of its own, and signals its own threads.
pub fn caddy(place: &Place) -> Server {
    let (site, at) = (place.site(), place.at.to_string());
    let root = site.root().display().to_string();
    let home = format!("HOME={}", place.work().display());
    let caddy = words("caddy", "caddy", &["file-server", "--root", &root, "--listen", &at]);
    let home = ["-u", "XDG_DATA_HOME", "-u", "XDG_CONFIG_HOME", &home];
    let command = words("env", "coreutils", &home).into_iter().chain(caddy).collect();
    of_files(command, &site, Url::http(place), End::with(SIGTERM, 0))
}
