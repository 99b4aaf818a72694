package planstore

import (
	"fmt"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
)

// ContentsOf returns the contents that a plan's status describes. It shares no memory with the
// status.
func ContentsOf(status *v1alpha1.PlanStatus) *Contents {
	s := status.Summary
	out := &Contents{
		Digest: status.Digest,
		Counts: change.Counts{
			Create: int(s.Create), Update: int(s.Update), Replace: int(s.Replace), Delete: int(s.Delete), Read: int(s.Read),
			Import: int(s.Import), Move: int(s.Move), Forget: int(s.Forget), NoOp: int(s.NoOp), Drift: int(s.Drift), Place: int(s.Place), Kept: int(s.Kept),
		},
	}
	for i := range status.Chunks {
		from := &status.Chunks[i]
		chunk := ChunkInfo{
			Digest: from.Digest, Changes: int(from.Changes), Pieces: int(from.Pieces),
			First: change.Address(from.First), Last: change.Address(from.Last),
			Actions: make(map[change.Action]int, len(from.Actions)),
		}
		for action, n := range from.Actions {
			chunk.Actions[change.Action(action)] = int(n)
		}
		// Summaries have no fields for these two, because the chunks have them.
		out.Counts.Changes += chunk.Changes
		out.Counts.Deferred += chunk.Actions[change.Deferred]
		out.Chunks = append(out.Chunks, chunk)
	}
	return out
}

// SetContents writes a plan's digest, summary and chunks into its status.
func SetContents(status *v1alpha1.PlanStatus, c *Contents) {
	n := c.Counts
	status.Digest = c.Digest
	status.Summary = v1alpha1.PlanSummary{
		Create: int64(n.Create), Update: int64(n.Update), Replace: int64(n.Replace), Delete: int64(n.Delete), Read: int64(n.Read),
		Import: int64(n.Import), Move: int64(n.Move), Forget: int64(n.Forget), NoOp: int64(n.NoOp), Drift: int64(n.Drift),
		Place: int64(n.Place), Kept: int64(n.Kept),
	}
	status.Chunks = nil
	for i := range c.Chunks {
		from := &c.Chunks[i]
		chunk := v1alpha1.PlanChunk{
			// A chunk has at most a few thousand changes and a few pieces.
			Digest: from.Digest, Changes: int32(from.Changes), Pieces: int32(from.Pieces),
			First: v1alpha1.ChangeAddress(from.First), Last: v1alpha1.ChangeAddress(from.Last),
		}
		for action, n := range from.Actions {
			if chunk.Actions == nil {
				chunk.Actions = make(map[string]int32, len(from.Actions))
			}
			chunk.Actions[string(action)] = int32(n)
		}
		status.Chunks = append(status.Chunks, chunk)
	}
}

// PieceName returns the name of the PlanChanges and PlanSecrets objects that hold a piece of a
// chunk.
func PieceName(plan string, chunk, piece int) string {
	return fmt.Sprintf("%s-%d-%d", plan, chunk, piece)
}
