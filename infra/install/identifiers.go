package install

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

// Source names a provider: who serves it first, whose it is, and which it is.
type Source struct{ Host, Namespace, Type string }

// ParseSource reads TYPE, NAMESPACE/TYPE or HOST/NAMESPACE/TYPE, as OpenTofu does:
// in any case, with the namespace hashicorp if there is none. What has no host
// is of the default host. Other than OpenTofu it takes ASCII alone: two names that
// look the same must be the same.
func ParseSource(text, defaultHost string) (Source, error) {
	if strings.ContainsFunc(text, func(c rune) bool { return c > unicode.MaxASCII }) { // of which some have ASCII in lower case
		return Source{}, fmt.Errorf("%w: source %q has letters that are not ASCII; a host is written as DNS knows it (xn--…)", ErrInvalid, short(text))
	}
	parts := strings.Split(strings.ToLower(text), "/")
	var s Source
	switch len(parts) {
	case 1:
		s = Source{defaultHost, "hashicorp", parts[0]}
	case 2:
		s = Source{defaultHost, parts[0], parts[1]}
	case 3:
		s = Source{parts[0], parts[1], parts[2]}
	default:
		return Source{}, fmt.Errorf("%w: source %q is not of the form HOST/NAMESPACE/TYPE", ErrInvalid, short(text))
	}
	s.Host = strings.TrimSuffix(strings.ToLower(s.Host), ":443")
	if err := s.check(); err != nil {
		return Source{}, err
	}
	return s, nil
}

func (s Source) String() string { return s.Host + "/" + s.Namespace + "/" + s.Type }

// check refuses what ParseSource would not have made. Sources become paths and
// addresses, so everything that takes one looks.
func (s Source) check() error {
	bad := func(what, given, rule string) error {
		return fmt.Errorf("%w: %s %q of source %q %s", ErrInvalid, what, short(given), short(s.String()), rule)
	}
	host, port, hasPort := strings.Cut(s.Host, ":")
	if number, err := strconv.Atoi(port); hasPort && (err != nil || number < 1 || number > 65535 || strconv.Itoa(number) != port) {
		return bad("port", port, "is not a number of 1 to 65535")
	}
	if len(host) > 253 {
		return bad("host", host, "is longer than 253 characters")
	}
	for label := range strings.SplitSeq(host, ".") {
		if !isLabel(label) {
			return bad("host", s.Host, "is no host name in lower-case ASCII")
		}
	}
	for _, part := range []struct{ what, name string }{{"namespace", s.Namespace}, {"type", s.Type}} {
		if !isLabel(part.name) || strings.Contains(part.name, "--") {
			return bad(part.what, part.name, "may have lower-case ASCII letters, digits, and single dashes between them")
		}
	}
	for _, prefix := range []string{"terraform-", "opentofu-"} {
		if strings.HasPrefix(s.Type, prefix) {
			return bad("type", s.Type, "begins with "+prefix+", which is left out: terraform-provider-time is of the type time")
		}
	}
	return nil
}

// isLabel tells whether text is a label of a DNS name.
func isLabel(text string) bool {
	if text == "" || len(text) > 63 || text[0] == '-' || text[len(text)-1] == '-' {
		return false
	}
	return strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// Version is an exact version of a provider, as Semantic Versioning 2.0.0 has it, without
// a leading v.
type Version string

// ParseVersion reads an exact version. 1.0 is none, nor is ~> 1.0.
func ParseVersion(text string) (Version, error) {
	if v := "v" + text; !semver.IsValid(v) || semver.Canonical(v)+semver.Build(v) != v || len(text) > 128 {
		return "", fmt.Errorf("%w: version %q is not exact; write all of it, as in 1.2.3 or 1.2.3-beta1", ErrInvalid, short(text))
	}
	return Version(text), nil
}

// Compare is negative if v is before w. What follows a + only decides between versions
// that are otherwise the same.
func (v Version) Compare(w Version) int {
	if order := semver.Compare("v"+string(v), "v"+string(w)); order != 0 {
		return order
	}
	return strings.Compare(string(v), string(w))
}

// sortVersions makes an origin's answer: each once, lowest first.
func sortVersions(all []Version) []Version {
	slices.SortFunc(all, Version.Compare)
	return slices.Compact(all)
}

// Platform is an operating system and an architecture, in Go's names.
type Platform struct{ OS, Arch string }

// ThisPlatform is the one that Atoll runs on.
func ThisPlatform() Platform { return Platform{runtime.GOOS, runtime.GOARCH} }

// ParsePlatform reads OS_ARCH.
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
			return fmt.Errorf("%w: platform %q is not of the form OS_ARCH, as in linux_amd64", ErrInvalid, short(p.String()))
		}
	}
	return nil
}

// Digest says which package is meant. zh: is of the archive, h1: of the files in it, as
// in OpenTofu's lock files:
//
//	zh: SHA-256 of the zip file, in hexadecimal
//	h1: SHA-256 of the list of files with the SHA-256 of each, in Base64
//
// A package has one h1: however it is packed. Lock files have one zh: for each
// platform, so that a list of digests names packages of several.
type Digest string

const (
	archiveScheme = "zh:"
	contentScheme = "h1:"
)

// ParseDigest reads a digest of a scheme that is known.
func ParseDigest(text string) (Digest, error) {
	if d := Digest(text); d.sum() != nil {
		return d, nil
	}
	return "", fmt.Errorf("%w: digest %q is neither zh: with 64 lower-case hexadecimal digits nor h1: with 44 characters of Base64", ErrInvalid, short(text))
}

func newDigest(scheme string, sum []byte) Digest {
	if scheme == archiveScheme {
		return Digest(scheme + hex.EncodeToString(sum))
	}
	return Digest(scheme + base64.StdEncoding.EncodeToString(sum))
}

// sum is the 32 bytes of the digest, nil if it is not well-formed. Only one way of writing
// it counts, so that digests can be compared as text.
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

// ofArchive and ofContent tell which kind it is.
func (d Digest) ofArchive() bool { return strings.HasPrefix(string(d), archiveScheme) }
func (d Digest) ofContent() bool { return strings.HasPrefix(string(d), contentScheme) }

// loopback tells whether a host is this machine, by what it is called: a name that somebody
// else's DNS answers for does not count.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// short is what of somebody else's text goes into an error: errors end in conditions and logs.
func short(text string) string {
	const most = 200
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
