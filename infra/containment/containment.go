// Package containment decides what the process of a provider may do: a Provider's spec and the facts
// of a machine give a Profile, which infra/plugin applies before the first instruction of the
// provider runs. It reads nothing and changes nothing. DESIGN.md has the choices.
package containment

import (
	"errors"
	"fmt"
	"slices"
)

// Access is what a provider may do with a path.
type Access string

const (
	// ReadOnly lets it read, list and execute.
	ReadOnly Access = "ReadOnly"
	// ReadWrite also lets it write, create and remove.
	ReadWrite Access = "ReadWrite"
)

// File is a file, or a directory with everything below it.
type File struct {
	Path   string
	Access Access
}

// Spec is what the administrator of a Provider allows beyond the defaults.
type Spec struct {
	// Files are spec.files of the Provider, in its order: errors name them by index.
	Files []File
	// TCPPorts are the only ports to which TCP connections may be made. Nil means all.
	TCPPorts []uint16
	// Protected are paths that no grant may reach: those with files of the server.
	Protected []string
}

// User is the user that a process runs as.
type User struct{ UID, GID uint32 }

// Process describes one process of a provider.
type Process struct {
	// Program is its executable. Package is the directory of its package; empty means that only the
	// program itself is readable.
	Program, Package string
	// Directory is its working directory, which is its own.
	Directory string
	// TrustedCertificates are files or directories that the server's environment names
	// (SSL_CERT_FILE, SSL_CERT_DIR).
	TrustedCertificates []string
	// User is the user to change to; nil stays the server's own.
	User *User
	// OwnUser is set if no process of anything else runs as User, so that its number of processes
	// can be limited.
	OwnUser bool
}

// Machine has the facts on which a decision depends.
type Machine struct {
	// System is the operating system, as in GOOS.
	System string
	// Landlock is the version of Landlock's interface that the kernel has; 0 means none.
	Landlock int
	// Filters is set if the kernel filters system calls, and this program knows its processor.
	Filters bool
}

// Parts of a containment, as a Provider's status lists them.
const (
	PartFiles           = "Files"
	PartSystemCalls     = "SystemCalls"
	PartUser            = "User"
	PartSignals         = "Signals"
	PartAbstractSockets = "AbstractSockets"
	PartTCPPorts        = "TCPPorts"
)

// Versions of Landlock's interface, and what each added.
const (
	landlockTruncate = 3
	landlockTCP      = 4
	landlockScopes   = 6
)

// Rule grants access to a path.
type Rule struct {
	File
	// Field is the field of the Provider that grants it; empty for defaults.
	Field string
	// Own is set for the provider's own package and working directory, which may be below a protected
	// path.
	Own bool
	// Optional is set if a path that does not exist is no error.
	Optional bool
}

// Limits are the resource limits of a process. 0 means that the server's own limit stays.
type Limits struct{ OpenFiles, Processes, FileBytes uint64 }

// Profile is the decision. The process that applies it opens each path, and rejects one that is, or
// leads through, a symbolic link, or that reaches a protected path.
type Profile struct {
	Landlock  int
	Rules     []Rule
	Protected []string
	// RestrictTCP limits connections to TCPPorts.
	RestrictTCP bool
	TCPPorts    []uint16
	// Scoped keeps signals and connections to abstract sockets within the process and its children.
	Scoped bool
	// Filter denies the system calls of Denied.
	Filter bool
	// DenyTruncate denies truncate(2), which a kernel without landlockTruncate does not check.
	DenyTruncate bool
	User         *User
	Limits       Limits
	// Enforced and NotEnforced are the parts that hold here, and those that do not.
	Enforced, NotEnforced []string
}

// ErrImpossible reports a machine on which a provider cannot be contained.
var ErrImpossible = errors.New("the provider cannot be contained")

// remedy ends errors about the machine.
const remedy = "run the server on a Linux kernel with Landlock (5.13 or later, with landlock in /sys/kernel/security/lsm), " +
	"or set spec.containment: None on the Provider, which gives it the rights of the server's process"

// Resource limits. A provider with a thousand concurrent calls has that many connections; a Go program
// has some threads for each processor and each blocking call.
const (
	maxOpenFiles = 8192
	maxProcesses = 4096
	maxFileBytes = 16 << 30
)

// Decide returns the profile of a process. Access to files must be restricted, or the error is
// ErrImpossible. Everything else is restricted as far as the machine can, and reported.
func Decide(spec Spec, process Process, machine Machine) (Profile, error) {
	switch {
	case machine.System != "linux":
		return Profile{}, fmt.Errorf("%w: %s has no Landlock: %s", ErrImpossible, machine.System, remedy)
	case machine.Landlock < 1:
		return Profile{}, fmt.Errorf("%w: this kernel has no Landlock: %s", ErrImpossible, remedy)
	case machine.Landlock < landlockTruncate && !machine.Filters:
		return Profile{}, fmt.Errorf("%w: this kernel's Landlock does not protect files from being truncated, and its system calls cannot be filtered: %s", ErrImpossible, remedy)
	}
	if err := Validate(spec.Files); err != nil {
		return Profile{}, err
	}
	if i, protected := Overlap(spec.Files, spec.Protected); i >= 0 {
		return Profile{}, overlapError(i, spec.Files[i].Path, protected)
	}
	p := Profile{
		Landlock: machine.Landlock, Rules: rules(spec, process), Protected: spec.Protected, User: process.User,
		Scoped: machine.Landlock >= landlockScopes, Filter: machine.Filters, DenyTruncate: machine.Landlock < landlockTruncate,
		Limits: Limits{OpenFiles: maxOpenFiles, FileBytes: maxFileBytes},
	}
	if process.OwnUser {
		p.Limits.Processes = maxProcesses
	}
	if spec.TCPPorts != nil && machine.Landlock >= landlockTCP {
		p.RestrictTCP, p.TCPPorts = true, slices.Clone(spec.TCPPorts)
	}
	p.report(PartFiles, true)
	p.report(PartSystemCalls, p.Filter)
	p.report(PartUser, p.User != nil)
	p.report(PartSignals, p.Scoped || process.OwnUser)
	p.report(PartAbstractSockets, p.Scoped)
	if spec.TCPPorts != nil {
		p.report(PartTCPPorts, p.RestrictTCP)
	}
	return p, nil
}

func (p *Profile) report(part string, holds bool) {
	if holds {
		p.Enforced = append(p.Enforced, part)
	} else {
		p.NotEnforced = append(p.NotEnforced, part)
	}
}

// rules returns what the process can reach: what every program needs, its own package and working
// directory, and the grants of the spec.
func rules(spec Spec, process Process) []Rule {
	var out []Rule
	for _, path := range systemFiles() {
		out = append(out, Rule{File: File{path, ReadOnly}, Optional: true})
	}
	for _, path := range deviceFiles() {
		out = append(out, Rule{File: File{path, ReadWrite}, Optional: true})
	}
	for _, path := range process.TrustedCertificates {
		if i, _ := Overlap([]File{{Path: path}}, spec.Protected); i < 0 {
			out = append(out, Rule{File: File{path, ReadOnly}, Optional: true})
		}
	}
	program := process.Program
	if process.Package != "" {
		program = process.Package
	}
	out = append(out, Rule{File: File{program, ReadOnly}, Own: true}, Rule{File: File{process.Directory, ReadWrite}, Own: true})
	for i, file := range spec.Files {
		out = append(out, Rule{File: file, Field: fieldOf(i)})
	}
	return out
}
