//! Which replies are logged and which are generated again.
//!
//! A path is matched as the client wrote it, without the query. No percent-encoding is decoded, no
//! dot segment removed: how a server does that is its own affair, and a guess that differs would
//! generate again what cannot be generated twice. A path that is likely to mean another one to a
//! server therefore matches no route, and its reply is logged, which is right for every reply.

use globset::{Candidate, GlobBuilder, GlobMatcher};
use thiserror::Error;

/// What is done with a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Treatment {
    /// It is held until it is stable, and never generated again.
    #[default]
    Log,
    /// It is released at once, and generated again by another server if need be: for replies that
    /// are the same each time, and requests that may be executed twice.
    Regenerate,
}

/// An ordered list of routes. The first that matches decides; without one it is [`Treatment::Log`].
///
/// ```
/// use http::{Routes, Treatment};
///
/// let mut routes = Routes::default();
/// routes.add("GET", "/static/private/**", Treatment::Log)?;
/// routes.add("GET", "/static/**", Treatment::Regenerate)?;
/// assert_eq!(routes.treatment("GET", "/static/css/site.css?v=3"), Treatment::Regenerate);
/// assert_eq!(routes.treatment("GET", "/static/private/key"), Treatment::Log);
/// assert_eq!(routes.treatment("GET", "/static/../cart"), Treatment::Log);
/// assert_eq!(routes.treatment("POST", "/static/css/site.css"), Treatment::Log);
/// # Ok::<(), http::RouteError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Routes {
    routes: Vec<Route>,
}

#[derive(Clone, Debug)]
struct Route {
    /// `None` is any.
    method: Option<String>,
    path: GlobMatcher,
    treatment: Treatment,
}

/// A route that cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RouteError {
    /// The method is empty or contains a character that no method has (RFC 9110 §9.1).
    #[error("{method:?} is not a method; write one such as \"GET\", or \"*\" for any")]
    Method {
        /// As given.
        method: String,
    },
    /// The pattern could never match.
    #[error("the path pattern {glob:?} does not begin with \"/\", as every path does")]
    NotAbsolute {
        /// As given.
        glob: String,
    },
    /// The pattern is malformed.
    #[error("the path pattern {glob:?} is malformed: {problem}")]
    Glob {
        /// As given.
        glob: String,
        /// What the parser says.
        problem: String,
    },
}

impl Routes {
    /// Adds a route behind those that are there.
    ///
    /// `method` is compared as it is (methods are case-sensitive); `*` is any. In `glob`, `*` and
    /// `?` stay within a segment of the path, `**` as a whole segment is any number of segments,
    /// `[a-z]` and `{a,b}` are choices, `\` takes the next character as it is. Case matters.
    pub fn add(
        &mut self,
        method: &str,
        glob: &str,
        treatment: Treatment,
    ) -> Result<(), RouteError> {
        if method.is_empty() || !method.bytes().all(crate::head::is_token) {
            return Err(RouteError::Method { method: method.to_owned() });
        }
        if !glob.starts_with('/') {
            return Err(RouteError::NotAbsolute { glob: glob.to_owned() });
        }
        let path = GlobBuilder::new(glob)
            .literal_separator(true)
            .backslash_escape(true)
            .build()
            .map_err(|error| RouteError::Glob {
                glob: glob.to_owned(),
                problem: error.kind().to_string(),
            })?
            .compile_matcher();
        let method = (method != "*").then(|| method.to_owned());
        self.routes.push(Route { method, path, treatment });
        Ok(())
    }

    /// What is done with the reply to a request, from its method and target as sent.
    pub fn treatment(&self, method: &str, target: &str) -> Treatment {
        let path = target.split_once('?').map_or(target, |(path, _)| path);
        if self.routes.is_empty() || !means_itself(path) {
            return Treatment::default();
        }
        let path = Candidate::from_bytes(path.as_bytes());
        let matches = |route: &&Route| {
            route.method.as_deref().is_none_or(|named| named == method)
                && route.path.is_match_candidate(&path)
        };
        self.routes.iter().find(matches).map_or(Treatment::default(), |route| route.treatment)
    }
}

/// Whether no server is likely to take the path for another one. Not so: what is no path at all (a
/// URI, `*`, an authority), dot segments, also with parameters (`/..;x/`) or encoded, encoded
/// slashes, backslashes, a fragment.
fn means_itself(path: &str) -> bool {
    let odd_segment = |segment: &str| {
        let name = segment.split(';').next().unwrap_or_default();
        name == "." || name == ".."
    };
    let odd_code = |code: &[u8]| {
        [b"%2e", b"%2f", b"%5c"].iter().any(|odd| code.eq_ignore_ascii_case(&odd[..]))
    };
    path.starts_with('/')
        && !path.contains(['\\', '#'])
        && !path.split('/').any(odd_segment)
        && !path.as_bytes().windows(3).any(odd_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(rows: &[(&str, &str)]) -> Routes {
        let mut routes = Routes::default();
        for (method, glob) in rows {
            routes.add(method, glob, Treatment::Regenerate).unwrap();
        }
        routes
    }

    #[track_caller]
    fn check(glob: &str, regenerated: &[&str], logged: &[&str]) {
        let routes = routes(&[("GET", glob)]);
        for path in regenerated {
            assert_eq!(routes.treatment("GET", path), Treatment::Regenerate, "{glob} {path}");
        }
        for path in logged {
            assert_eq!(routes.treatment("GET", path), Treatment::Log, "{glob} {path}");
        }
    }

    #[test]
    fn globs_match_paths_segment_by_segment() {
        check(
            "/a/*.png",
            &["/a/x.png", "/a/.png"],
            &["/a/b/x.png", "/a/x.PNG", "/b/a/x.png", "/a/"],
        );
        check("/a/**", &["/a/x", "/a/b/c/d", "/a/x?y=/../z"], &["/ab", "/a", "/b/a/x", ""]);
        check("/**/*.js", &["/x.js", "/a/b/x.js"], &["/x.jsx", "x.js"]);
        check("/v[12]/{css,js}/?", &["/v1/css/a", "/v2/js/b"], &["/v3/css/a", "/v1/img/a"]);
        check("/a\\*b", &["/a*b"], &["/axb"]);
        check("/", &["/", "/?q"], &["/a", "//"]);
    }

    #[test]
    fn percent_encoding_stays_as_it_is() {
        check("/a%20b", &["/a%20b"], &["/a b", "/a%2520b"]);
        check("/caf\u{e9}", &["/caf\u{e9}"], &["/caf%C3%A9"]);
    }

    #[test]
    fn what_a_server_may_take_for_another_path_is_logged() {
        let odd = [
            "/a/../b",
            "/a/..",
            "/a/./b",
            "/a/.",
            "/a/%2e%2e/b",
            "/a/%2E./b",
            "/a/..%2fb",
            "/a/..%5Cb",
            "/a\\..\\b",
            "/a/..;x=1/b",
            "/a/b#c",
            "http://h/a",
            "*",
            "h:80",
        ];
        check("/**", &["/a/..b", "/.well-known/x", "/a/b;c", "/a%3fb"], &odd);
    }

    #[test]
    fn the_first_route_that_matches_decides() {
        let mut routes = Routes::default();
        assert_eq!(routes.treatment("GET", "/a/b"), Treatment::Log);
        routes.add("*", "/a/b", Treatment::Log).unwrap();
        routes.add("*", "/a/*", Treatment::Regenerate).unwrap();
        routes.add("GET", "/b", Treatment::Regenerate).unwrap();
        assert_eq!(routes.treatment("GET", "/a/b"), Treatment::Log);
        assert_eq!(routes.treatment("PUT", "/a/c"), Treatment::Regenerate);
        assert_eq!(routes.treatment("GET", "/b"), Treatment::Regenerate);
        assert_eq!(routes.treatment("get", "/b"), Treatment::Log);
        assert_eq!(routes.treatment("HEAD", "/b"), Treatment::Log);
    }

    #[test]
    fn routes_that_cannot_be_meant_are_refused() {
        let refused = |method, glob| {
            Routes::default().add(method, glob, Treatment::Regenerate).unwrap_err().to_string()
        };
        assert!(refused("", "/").contains("is not a method"));
        assert!(refused("GET POST", "/").contains("is not a method"));
        assert!(refused("GET", "static/**").contains("does not begin with"));
        assert!(refused("GET", "/[a").contains("malformed: unclosed character class"));
    }
}
