package enginetest

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/planstore"
)

// Salt returns a salt for plans.
func Salt() []byte { return []byte("0123456789abcdef0123456789abcdef") }

// PlanStore is a planstore.Store in memory.
type PlanStore struct {
	mu                        sync.Mutex
	ShownPieces, SealedPieces map[int][][]byte
	Err                       error
}

// NewPlanStore returns an empty store.
func NewPlanStore() *PlanStore {
	return &PlanStore{ShownPieces: map[int][][]byte{}, SealedPieces: map[int][][]byte{}}
}

func (c *PlanStore) Put(_ context.Context, chunk int, shown, sealed [][]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ShownPieces[chunk], c.SealedPieces[chunk] = shown, sealed
	return c.Err
}

func (c *PlanStore) Shown(_ context.Context, chunk int) ([][]byte, error) {
	return c.ShownPieces[chunk], nil
}
func (c *PlanStore) Sealed(_ context.Context, chunk int) ([][]byte, error) {
	return c.SealedPieces[chunk], nil
}

// Changes reads all stored changes and checks each against its sealed part.
func (c *PlanStore) Changes(t testing.TB, contents *planstore.Contents, salt []byte) ([]*change.Change, map[change.Address][]byte) {
	t.Helper()
	var out []*change.Change
	all := map[change.Address][]byte{}
	for i := range contents.Chunks {
		sealed, err := planstore.OpenSealed(c.SealedPieces[i])
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(all, sealed)
		err = contents.Chunks[i].Read(c.ShownPieces[i], true, nil, func(change *change.Change) bool {
			out = append(out, change)
			switch part, is := sealed[change.Address]; {
			case is && decide.SealDigest(salt, part) != change.Sealed:
				t.Errorf("%s: the sealed part does not match", change.Address)
			case !is && change.Sealed != "":
				t.Errorf("%s: the sealed part is in another chunk", change.Address)
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out, all
}

// Actions returns the actions of a plan, one per line, without no-ops, and its problems.
func (s *PlanStore) Actions(t testing.TB, contents *planstore.Contents, problems []v1alpha1.Problem) string {
	t.Helper()
	list, _ := s.Changes(t, contents, Salt())
	var out []string
	for _, c := range list {
		if c.Action == change.NoOp && c.Drift == nil {
			continue
		}
		text := fmt.Sprintf("%s %s", c.Action, strings.TrimPrefix(c.Address.String(), `namespace["shop"].`))
		if c.Reason != "" {
			text += fmt.Sprintf(" (%s%s)", c.Reason, c.Detail)
		}
		if c.CreateFirst {
			text += " first"
		}
		out = append(out, text)
	}
	for _, p := range problems {
		out = append(out, fmt.Sprintf("! %s %s: %s", p.Address, p.Field, p.Message))
	}
	return strings.Join(out, "\n")
}
