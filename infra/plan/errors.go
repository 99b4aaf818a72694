package plan

import (
	"errors"
	"fmt"
	"strings"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

var (
	// ErrInvalid is of what the provider refuses: the configuration has to be changed.
	ErrInvalid = errors.New("the provider refuses it")
	// ErrFailed is of what the provider tried to do, and could not.
	ErrFailed = errors.New("the provider failed")
	// ErrPrevented is of a resource that would be destroyed and must not be.
	ErrPrevented = errors.New("lifecycle.prevent_destroy forbids it")
	// ErrStale is of what would no longer be done as it was approved. It has to be planned again.
	ErrStale = errors.New("the plan is stale")
	// ErrProvider is of an answer that a provider must not give.
	ErrProvider = errors.New("the provider does not keep its contract")
	// ErrImport is of a resource that cannot be taken over.
	ErrImport = errors.New("it cannot be imported")
	// ErrState is of stored state that cannot be used.
	ErrState = errors.New("the stored state cannot be used")
)

// Error is why something is not done.
type Error struct {
	Address Address
	// Kind is one of the errors above.
	Kind error
	// Remedy is what can be done about it.
	Remedy string
	// Problems are what we found, without any values.
	Problems []Problem
	// Diagnostics are the provider's. They can quote secrets, so that they are not
	// part of the text: mask them before they are shown.
	Diagnostics contract.Diagnostics
}

// Error has no values in it, and nothing that the provider said.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %v", e.Address, e.Kind)
	for i, p := range e.Problems {
		if i == 0 {
			b.WriteString(": ")
		} else {
			b.WriteString("; ")
		}
		b.WriteString(p.String())
	}
	if len(e.Diagnostics) > 0 {
		b.WriteString(", for reasons of its own")
	}
	if e.Remedy != "" {
		b.WriteString("; " + e.Remedy)
	}
	return b.String()
}

// Unwrap gives the kind.
func (e *Error) Unwrap() error { return e.Kind }

// Problem is one thing that is wrong, and where.
type Problem struct {
	Path cty.Path
	Text string
}

// String names the path as the user writes it.
func (p Problem) String() string {
	if len(p.Path) == 0 {
		return p.Text
	}
	return PathText(p.Path) + ": " + p.Text
}
