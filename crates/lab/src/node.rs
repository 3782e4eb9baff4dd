//! The node daemon inside a host: the real binary with a real configuration.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    command::Child,
    error::{Doing, Error, Result},
    lab::Lab,
};

/// What runs on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// The host.
    pub host: String,
    /// The whole configuration file.
    pub config_toml: String,
    /// Files that the configuration names, such as the key, to be written into the lab's
    /// directory: file name and contents. Readable by root only.
    pub files: Vec<(String, Vec<u8>)>,
}

/// A node daemon. It lives until it is killed or its host is.
#[derive(Debug)]
pub struct Node {
    host: String,
    child: Child,
    config: PathBuf,
    log: PathBuf,
}

impl Node {
    /// The host it runs in.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its process id as seen from outside the host.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its configuration file.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// What it prints.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Its exit status, if it has ended.
    ///
    /// # Errors
    /// The kernel refuses to say.
    pub fn ended(&self) -> Result<Option<std::process::ExitStatus>> {
        self.child.try_wait()
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn signal(&self, signal: i32) -> Result<()> {
        self.child.signal(signal)
    }

    /// Waits until `ready` says so, asking every few milliseconds.
    ///
    /// # Errors
    /// [`Error::NotReady`] after `timeout`, [`Error::Ended`] if it ends before.
    pub fn wait_ready(&self, timeout: Duration, mut ready: impl FnMut() -> bool) -> Result<()> {
        let what = || format!("the node daemon of host {}", self.host);
        let deadline = Instant::now() + timeout;
        while !ready() {
            // Waiting for its end is what paces the questions.
            if let Some(status) = self.child.wait_timeout(Duration::from_millis(5))? {
                return Err(Error::Ended { what: what(), status, log: self.log.clone() });
            }
            if Instant::now() >= deadline {
                let log = self.log.clone();
                return Err(Error::NotReady { what: what(), after: timeout, log });
            }
        }
        Ok(())
    }
}

impl Lab {
    /// Writes `config_toml` to `<dir>/<host>.toml` and runs `steadfast node --config` with
    /// it in the host. What it prints is appended to `<dir>/<host>.log`.
    ///
    /// # Errors
    /// There is no such host, it is down, or the binary cannot be run.
    pub fn start_node(&self, host: &str, config_toml: &str) -> Result<Arc<Node>> {
        let files = Vec::new();
        self.start(&NodeSpec { host: host.into(), config_toml: config_toml.into(), files })
    }

    /// As [`start_node`](Self::start_node), with further files.
    ///
    /// # Errors
    /// As [`start_node`](Self::start_node).
    pub fn start(&self, spec: &NodeSpec) -> Result<Arc<Node>> {
        let host = self.host(&spec.host)?;
        let config = self.dir().join(format!("{}.toml", spec.host));
        let mut files = vec![(config.clone(), spec.config_toml.as_bytes())];
        for (name, contents) in &spec.files {
            if Path::new(name).components().count() != 1 {
                return Err(Error::Topology(format!("\"{name}\" is not a plain file name")));
            }
            files.push((self.dir().join(name), contents));
        }
        for (path, contents) in files {
            write_private(&path, contents).doing(|| format!("write {}", path.display()))?;
        }
        self.start_again(host.name())
    }

    /// Starts the daemon of a host with the configuration that is there already, after a
    /// boot for example.
    ///
    /// # Errors
    /// As [`start_node`](Self::start_node).
    pub fn start_again(&self, host: &str) -> Result<Arc<Node>> {
        let host = self.host(host)?;
        let config = self.dir().join(format!("{}.toml", host.name()));
        let log = self.dir().join(format!("{}.log", host.name()));
        let doing = || format!("open {}", log.display());
        let out = fs::OpenOptions::new().create(true).append(true).open(&log).doing(doing)?;
        let err = out.try_clone().doing(doing)?;
        let binary = self.steadfast.as_deref().unwrap_or(Path::new("steadfast"));
        let child = host
            .command(binary)
            .arg("node")
            .arg("--config")
            .arg(&config)
            .stdin(std::process::Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()?;
        let node = Arc::new(Node { host: host.name().to_owned(), child, config, log });
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.insert(node.host.clone(), node.clone());
        Ok(node)
    }

    /// The daemon started last in a host.
    pub fn node(&self, host: &str) -> Option<Arc<Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).get(host).cloned()
    }
}

fn write_private(path: &Path, contents: &[u8]) -> std::io::Result<()> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    let mut options = fs::OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600).open(path)?.write_all(contents)
}
