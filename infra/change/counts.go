package change

import (
	"fmt"
	"strings"
)

// Counts counts changes by action.
type Counts struct {
	Changes  int `json:"changes"` // all, including no-ops
	Create   int `json:"create,omitempty"`
	Update   int `json:"update,omitempty"`
	Replace  int `json:"replace,omitempty"`
	Delete   int `json:"delete,omitempty"`
	Read     int `json:"read,omitempty"`
	Import   int `json:"import,omitempty"` // any action on an imported resource
	Move     int `json:"move,omitempty"`   // any action on a moved resource
	Forget   int `json:"forget,omitempty"`
	NoOp     int `json:"noOp,omitempty"`
	Deferred int `json:"deferred,omitempty"`
	Drift    int `json:"drift,omitempty"`
	Place    int `json:"place,omitempty"`
	Kept     int `json:"kept,omitempty"` // of the replaced ones, those that are forgotten instead of destroyed
}

// Add counts a change.
func (c *Counts) Add(change *Change) {
	c.Changes++
	if change.Drift != nil {
		c.Drift++
	}
	if change.Importing != "" {
		c.Import++
	}
	if change.MovedFrom != nil && change.Address.Deposed == "" {
		c.Move++
	}
	if change.Deferred != "" {
		c.Deferred++
		return
	}
	switch change.Action {
	case Create:
		c.Create++
	case Update:
		c.Update++
	case Replace:
		c.Replace++
		if change.KeepOld {
			c.Kept++
		}
	case Delete:
		c.Delete++
	case Read:
		c.Read++
	case Forget:
		c.Forget++
	case NoOp:
		c.NoOp++
	case Place:
		c.Place++
	}
}

// Empty reports whether the plan has no changes.
func (c *Counts) Empty() bool {
	return c.Create+c.Update+c.Replace+c.Delete+c.Read+c.Import+c.Move+c.Forget+c.Place == 0
}

// Summary returns the last line of a plan. A replacement counts as one to add and one to destroy, or to
// forget.
func (c *Counts) Summary() string {
	var parts []string
	if c.Import > 0 {
		parts = append(parts, fmt.Sprintf("%d to import", c.Import))
	}
	if c.Move > 0 {
		parts = append(parts, fmt.Sprintf("%d to move", c.Move))
	}
	parts = append(parts,
		fmt.Sprintf("%d to add", c.Create+c.Replace), fmt.Sprintf("%d to change", c.Update), fmt.Sprintf("%d to destroy", c.Delete+c.Replace-c.Kept))
	if forgotten := c.Forget + c.Kept; forgotten > 0 {
		parts = append(parts, fmt.Sprintf("%d to forget", forgotten))
	}
	if c.Place > 0 {
		parts = append(parts, fmt.Sprintf("%d to place in clusters", c.Place))
	}
	text := "Plan: " + strings.Join(parts, ", ") + "."
	if c.Deferred > 0 {
		text += fmt.Sprintf(" Deferred: %d.", c.Deferred)
	}
	return text
}
