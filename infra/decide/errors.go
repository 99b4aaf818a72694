package decide

import (
	"errors"
	"fmt"
	"strings"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

var (
	// ErrInvalid means that the provider rejected the configuration.
	ErrInvalid = errors.New("the provider rejected the configuration")
	// ErrFailed means that the provider tried an operation and failed.
	ErrFailed = errors.New("the provider returned an error")
	// ErrPrevented means that a resource with prevent_destroy would be destroyed.
	ErrPrevented = errors.New("the resource must not be destroyed: lifecycle.prevent_destroy is set")
	// ErrStale means that the approved plan no longer applies. A new plan is needed.
	ErrStale = errors.New("the plan is stale")
	// ErrProvider means that an answer of the provider breaks the plugin protocol.
	ErrProvider = errors.New("the provider produced an invalid result")
	// ErrImport means that a resource cannot be imported.
	ErrImport = errors.New("the resource cannot be imported")
	// ErrMove means that the provider cannot continue the state of another type.
	ErrMove = errors.New("the provider cannot continue the resource under this type")
	// ErrState means that the stored state cannot be used.
	ErrState = errors.New("the stored state cannot be used")
)

// Error is the reason why a resource cannot be planned or applied.
type Error struct {
	Address change.Address
	// Kind is one of the errors above.
	Kind error
	// Remedy is the next step for the user.
	Remedy string
	// Problems are the violations that Atoll found. They contain no values.
	Problems []Problem
	// Diagnostics are the provider's. They can quote secrets, so they are not part of the error
	// text. Mask them before they are shown.
	Diagnostics providerapi.Diagnostics
}

// Error returns a text without values and without the provider's diagnostics.
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
		b.WriteString(", see its diagnostics")
	}
	if e.Remedy != "" {
		b.WriteString("; " + e.Remedy)
	}
	return b.String()
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

// Problem is one violation and its place.
type Problem struct {
	Path cty.Path
	Text string
}

// String returns the path as users write it, and the text.
func (p Problem) String() string {
	if len(p.Path) == 0 {
		return p.Text
	}
	return providerapi.PathText(p.Path) + ": " + p.Text
}
