package postgres

import (
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// A URL without sslmode means verify-full, unless all of its hosts are on this machine. libpq's default, prefer, gives the
// password to whoever answers, without TLS if they say that they have none.

// withTLS returns the configuration with sslmode=verify-full if nothing sets the mode and a host is on another machine.
// verified reports whether it did.
func withTLS(config *pgconn.Config, text string) (_ *pgconn.Config, verified bool, err error) {
	if !isPreferred(config) || setsMode(text) || onThisMachine(config) {
		return config, false, nil
	}
	config, err = pgconn.ParseConfig(withMode(text, "verify-full"))
	return config, true, err
}

// isPreferred reports whether a configuration is that of sslmode=prefer: without verification, and without TLS if the
// server has none. It is also that of no mode, wherever else one could have been set.
func isPreferred(c *pgconn.Config) bool {
	with, without := map[string]bool{}, map[string]bool{}
	for _, f := range append([]*pgconn.FallbackConfig{{Host: c.Host, TLSConfig: c.TLSConfig}}, c.Fallbacks...) {
		switch {
		case f.TLSConfig == nil:
			without[f.Host] = true
		case f.TLSConfig.InsecureSkipVerify:
			with[f.Host] = true
		}
	}
	for host := range with {
		if without[host] {
			return true
		}
	}
	return false
}

// inKeywords finds the mode in the form "host=a sslmode=b".
var inKeywords = regexp.MustCompile(`(^|\s)sslmode\s*=`)

// setsMode reports whether a URL, or the environment, names a mode.
func setsMode(text string) bool {
	if os.Getenv("PGSSLMODE") != "" {
		return true
	}
	if _, query, isURL := cutURL(text); isURL {
		values, err := url.ParseQuery(query)
		return err != nil || values.Has("sslmode")
	}
	return inKeywords.MatchString(text)
}

func withMode(text, mode string) string {
	_, query, isURL := cutURL(text)
	switch {
	case !isURL:
		return text + " sslmode=" + mode
	case query == "" && !strings.Contains(text, "?"):
		return text + "?sslmode=" + mode
	case query == "":
		return text + "sslmode=" + mode
	}
	return text + "&sslmode=" + mode
}

// cutURL returns the two parts of a URL.
func cutURL(text string) (before, query string, isURL bool) {
	if !strings.HasPrefix(text, "postgres://") && !strings.HasPrefix(text, "postgresql://") {
		return "", "", false
	}
	before, query, _ = strings.Cut(text, "?")
	return before, query, true
}

// onThisMachine reports whether all hosts are sockets or loopback addresses.
func onThisMachine(c *pgconn.Config) bool {
	hosts := []string{c.Host}
	for _, f := range c.Fallbacks {
		hosts = append(hosts, f.Host)
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); h != "localhost" && !strings.HasPrefix(h, "/") && !strings.HasPrefix(h, "@") && (ip == nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}

// tlsRemedy returns the remedy for a connection that fails because of TLS; "" if it does not.
func tlsRemedy(err error, verified bool) string {
	why := ""
	if verified {
		why = "the URL names no sslmode, so it is verify-full; "
	}
	if _, unknown := errors.AsType[x509.UnknownAuthorityError](err); unknown {
		return " (" + why + "name the authority of the database's certificate with sslrootcert=FILE in the URL)"
	}
	if _, another := errors.AsType[x509.HostnameError](err); another {
		return " (" + why + "use a host name of the database's certificate in the URL)"
	}
	// The driver has no error value for this one.
	if strings.Contains(err.Error(), "server refused TLS connection") {
		return " (" + why + "set up TLS in the database, or, if no one else can reach the network between, set sslmode=disable in the URL)"
	}
	return ""
}
