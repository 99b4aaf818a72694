package tenancy

import "time"

// RemovingCopies is the reason while the copies that a parent has of the objects of a deleted workspace are being removed. It is no failure.
const RemovingCopies = "RemovingCopies"

// Unready is returned for a workspace that is not complete yet, for a reason that its users can understand.
type Unready struct {
	// Reason and Message are those of the condition Ready.
	Reason, Message string
	// After is when the controller looks again. 0 stands for an error: it tries again less and less often.
	After time.Duration
}

func (u *Unready) Error() string { return u.Message }
