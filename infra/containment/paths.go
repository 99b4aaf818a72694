package containment

import (
	"fmt"
	"path"
	"strings"
)

// systemFiles returns the files that programs need of the system: shared libraries, name resolution,
// certificates, time zones, media types. None of them has secrets. What does not exist is skipped.
func systemFiles() []string {
	return []string{
		// The dynamic linker and shared libraries.
		"/lib", "/lib32", "/lib64", "/libx32", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/local/lib",
		"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
		// Names of hosts and services. On many systems resolv.conf is a link to a file in one of these directories.
		"/etc/resolv.conf", "/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf",
		"/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols",
		// Certificate authorities, without the directories of private keys beside them.
		"/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/ca-bundle.pem", "/etc/ca-certificates", "/usr/share/ca-certificates",
		"/usr/local/share/ca-certificates", "/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/ca-trust/extracted",
		"/usr/share/pki", "/var/lib/ca-certificates",
		// Time zones, media types, locales.
		"/etc/localtime", "/usr/share/zoneinfo", "/usr/share/locale", "/etc/mime.types", "/usr/share/mime",
		// Every Go program reads it when it starts.
		"/sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
		"/dev/random", "/dev/urandom",
	}
}

// deviceFiles returns the devices that a program may also write to.
func deviceFiles() []string { return []string{"/dev/null", "/dev/zero", "/dev/full"} }

func fieldOf(i int) string { return fmt.Sprintf("spec.files[%d].path", i) }

// MaxPath is the maximum length of a path in spec.files.
const MaxPath = 1024

// Check returns the problem of a path and how to correct it, or the empty string.
func Check(file string) string {
	switch {
	case !strings.HasPrefix(file, "/"):
		return "must be an absolute path"
	case file == "/":
		return "must not be the root directory: name the files and directories that the provider needs"
	case path.Clean(file) != file:
		return fmt.Sprintf("must be a clean path: write %s", path.Clean(file))
	case len(file) > MaxPath:
		return fmt.Sprintf("must be at most %d bytes long", MaxPath)
	case strings.ContainsRune(file, 0):
		return "must not contain NUL"
	}
	return ""
}

// Validate checks the paths of spec.files.
func Validate(files []File) error {
	for i, file := range files {
		if problem := Check(file.Path); problem != "" {
			return fmt.Errorf("%s: %s", fieldOf(i), problem)
		}
		if file.Access != ReadOnly && file.Access != ReadWrite {
			return fmt.Errorf("spec.files[%d].access: must be %s or %s", i, ReadOnly, ReadWrite)
		}
	}
	return nil
}

// Within reports whether a clean path is dir or below it.
func Within(file, dir string) bool {
	return file == dir || dir == "/" || strings.HasPrefix(file, strings.TrimSuffix(dir, "/")+"/")
}

// Overlaps reports whether one of two clean paths contains the other.
func Overlaps(a, b string) bool { return Within(a, b) || Within(b, a) }

// Overlap returns the index of the first file that contains a protected path or is contained in one,
// and that path. The index is -1 if no file does.
func Overlap(files []File, protected []string) (index int, path string) {
	for i, file := range files {
		for _, dir := range protected {
			if Overlaps(file.Path, dir) {
				return i, dir
			}
		}
	}
	return -1, ""
}

func overlapError(i int, file, protected string) error {
	return fmt.Errorf("%s: %s", fieldOf(i), OverlapProblem(file, protected))
}

// OverlapProblem returns the problem of a path that reaches a protected one, with the remedy.
func OverlapProblem(file, protected string) string {
	if Within(file, protected) {
		return fmt.Sprintf("%s is in %s, which has files of the server that no provider may reach: keep the provider's files elsewhere", file, protected)
	}
	return fmt.Sprintf("%s contains %s, which has files of the server that no provider may reach: name only the files and directories that the provider needs", file, protected)
}
