package packages

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/mod/semver"
)

// Address is the source address of a provider, as OpenTofu calls it: the host that serves it, a
// namespace, and the provider's type.
type Address struct{ Host, Namespace, Type string }

// ParseAddress parses TYPE, NAMESPACE/TYPE or HOST/NAMESPACE/TYPE like OpenTofu: in any case, with
// the default namespace hashicorp and the given default host. Unlike OpenTofu it accepts only
// ASCII, so that two addresses that look the same are the same.
func ParseAddress(text, defaultHost string) (Address, error) {
	if strings.ContainsFunc(text, func(c rune) bool { return c > unicode.MaxASCII }) { // some non-ASCII letters have ASCII lower-case forms
		return Address{}, fmt.Errorf("%w: source %q has non-ASCII characters; write an internationalized host in its DNS form (xn--…)", ErrInvalid, truncate(text))
	}
	parts := strings.Split(strings.ToLower(text), "/")
	var s Address
	switch len(parts) {
	case 1:
		s = Address{defaultHost, "hashicorp", parts[0]}
	case 2:
		s = Address{defaultHost, parts[0], parts[1]}
	case 3:
		s = Address{parts[0], parts[1], parts[2]}
	default:
		return Address{}, fmt.Errorf("%w: source %q does not have the form HOST/NAMESPACE/TYPE", ErrInvalid, truncate(text))
	}
	s.Host = strings.TrimSuffix(strings.ToLower(s.Host), ":443")
	if err := s.check(); err != nil {
		return Address{}, err
	}
	return s, nil
}

func (s Address) String() string { return s.Host + "/" + s.Namespace + "/" + s.Type }

// check rejects addresses that ParseAddress would not return. Addresses become paths and URLs, so
// every function that takes one checks it.
func (s Address) check() error {
	bad := func(what, given, rule string) error {
		return fmt.Errorf("%w: %s %q of source %q %s", ErrInvalid, what, truncate(given), truncate(s.String()), rule)
	}
	host, port, hasPort := strings.Cut(s.Host, ":")
	if number, err := strconv.Atoi(port); hasPort && (err != nil || number < 1 || number > 65535 || strconv.Itoa(number) != port) {
		return bad("port", port, "is not a number from 1 to 65535")
	}
	if len(host) > 253 {
		return bad("host", host, "is longer than 253 characters")
	}
	for label := range strings.SplitSeq(host, ".") {
		if !isLabel(label) {
			return bad("host", s.Host, "is not a host name in lower-case ASCII")
		}
	}
	for _, part := range []struct{ what, name string }{{"namespace", s.Namespace}, {"type", s.Type}} {
		if !isLabel(part.name) || strings.Contains(part.name, "--") {
			return bad(part.what, part.name, "may only have lower-case ASCII letters, digits, and single dashes between them")
		}
	}
	for _, prefix := range []string{"terraform-", "opentofu-"} {
		if strings.HasPrefix(s.Type, prefix) {
			return bad("type", s.Type, "begins with "+prefix+"; omit the prefix: terraform-provider-time has the type time")
		}
	}
	return nil
}

// isLabel reports whether text is a label of a DNS name.
func isLabel(text string) bool {
	if text == "" || len(text) > 63 || text[0] == '-' || text[len(text)-1] == '-' {
		return false
	}
	return strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// Version is an exact version of a provider, as in Semantic Versioning 2.0.0, without a leading v.
type Version string

// ParseVersion parses an exact version. 1.0 and ~> 1.0 are not exact.
func ParseVersion(text string) (Version, error) {
	if v := "v" + text; !semver.IsValid(v) || semver.Canonical(v)+semver.Build(v) != v || len(text) > 128 {
		return "", fmt.Errorf("%w: version %q is not exact; specify all parts, as in 1.2.3 or 1.2.3-beta1", ErrInvalid, truncate(text))
	}
	return Version(text), nil
}

// Compare returns a negative number if v is before w. Build metadata after + only orders versions
// that are otherwise equal.
func (v Version) Compare(w Version) int {
	if order := semver.Compare("v"+string(v), "v"+string(w)); order != 0 {
		return order
	}
	return strings.Compare(string(v), string(w))
}

// sortVersions returns the versions without duplicates, lowest first.
func sortVersions(all []Version) []Version {
	slices.SortFunc(all, Version.Compare)
	return slices.Compact(all)
}

// Platform is an operating system and an architecture, by Go's names.
type Platform struct{ OS, Arch string }

// ThisPlatform returns the platform that Atoll runs on.
func ThisPlatform() Platform { return Platform{runtime.GOOS, runtime.GOARCH} }

// ParsePlatform parses OS_ARCH.
func ParsePlatform(text string) (Platform, error) {
	os, arch, _ := strings.Cut(text, "_")
	p := Platform{os, arch}
	if err := p.check(); err != nil {
		return Platform{}, err
	}
	return p, nil
}

func (p Platform) String() string { return p.OS + "_" + p.Arch }

func (p Platform) check() error {
	for _, word := range []string{p.OS, p.Arch} {
		if word == "" || len(word) > 32 || strings.Trim(word, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
			return fmt.Errorf("%w: platform %q does not have the form OS_ARCH, such as linux_amd64", ErrInvalid, truncate(p.String()))
		}
	}
	return nil
}

// Digest identifies a package, as in OpenTofu's lock files. A zh: digest is of the archive, an h1:
// digest of its files:
//
//	zh: SHA-256 of the zip file, in hexadecimal
//	h1: SHA-256 of the list of files with the SHA-256 of each, in Base64
//
// The h1: digest of a package does not depend on its archive. Lock files have one zh: digest for
// each platform, so a list of digests can name packages of several platforms.
type Digest string

const (
	archiveScheme = "zh:"
	contentScheme = "h1:"
)

// ParseDigest parses a digest of a known scheme.
func ParseDigest(text string) (Digest, error) {
	if d := Digest(text); d.sum() != nil {
		return d, nil
	}
	return "", fmt.Errorf("%w: digest %q is neither zh: with 64 lower-case hexadecimal digits nor h1: with 44 characters of Base64", ErrInvalid, truncate(text))
}

func newDigest(scheme string, sum []byte) Digest {
	if scheme == archiveScheme {
		return Digest(scheme + hex.EncodeToString(sum))
	}
	return Digest(scheme + base64.StdEncoding.EncodeToString(sum))
}

// sum returns the 32 bytes of the digest, or nil if it is malformed. Only the canonical encoding is
// accepted, so that digests can be compared as strings.
func (d Digest) sum() []byte {
	var sum []byte
	var again string
	switch {
	case strings.HasPrefix(string(d), archiveScheme):
		sum, _ = hex.DecodeString(string(d[len(archiveScheme):]))
		again = hex.EncodeToString(sum)
	case strings.HasPrefix(string(d), contentScheme):
		sum, _ = base64.StdEncoding.DecodeString(string(d[len(contentScheme):]))
		again = base64.StdEncoding.EncodeToString(sum)
	}
	if len(sum) != 32 || again != string(d[3:]) {
		return nil
	}
	return sum
}

// isArchive and isContent report the kind of the digest.
func (d Digest) isArchive() bool { return strings.HasPrefix(string(d), archiveScheme) }
func (d Digest) isContent() bool { return strings.HasPrefix(string(d), contentScheme) }

// isLoopback reports whether a host is this machine, judged by the name alone. Names that resolve
// to a loopback address by someone else's DNS do not count.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// truncate shortens external text for errors, which end up in conditions and logs.
func truncate(text string) string {
	const most = 200
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
