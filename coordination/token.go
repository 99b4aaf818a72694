package coordination

import (
	"fmt"
	"strconv"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// FenceAnnotation is the annotation that carries a token.
const FenceAnnotation = "coordination.atoll.dev/fence"

// A Token stands for one leadership: the time from one taking of a lease to the
// next. A later leadership of a lease has more Transitions. If the lease was
// deleted and made anew its UID differs and Transitions start again; then
// ResourceVersion, which never goes back in one workspace, is the greater one.
type Token struct {
	UID             types.UID
	Transitions     int32
	ResourceVersion string // of the lease, when it was taken
}

func tokenOf(lease *coordinationv1.Lease) Token {
	return Token{lease.UID, transitions(lease), lease.ResourceVersion}
}

// of tells whether a token is of the leadership that a lease shows.
func (t Token) of(lease *coordinationv1.Lease) bool {
	return t.UID == lease.UID && t.Transitions == transitions(lease) && !t.isZero()
}

func (t Token) isZero() bool { return t == Token{} }

// String is the token as objects carry it: UID/TRANSITIONS/RESOURCEVERSION.
func (t Token) String() string {
	return fmt.Sprintf("%s/%d/%s", t.UID, t.Transitions, t.ResourceVersion)
}

// ParseToken reads what String wrote.
func ParseToken(s string) (Token, error) {
	fields := strings.Split(s, "/")
	if len(fields) != 3 || fields[0] == "" || fields[2] == "" {
		return Token{}, fmt.Errorf("fencing token %q does not have the form UID/TRANSITIONS/RESOURCEVERSION", s)
	}
	n, err := strconv.ParseUint(fields[1], 10, 31)
	if err != nil {
		return Token{}, fmt.Errorf("fencing token %q: transitions: %w", s, err)
	}
	return Token{types.UID(fields[0]), int32(n), fields[2]}, nil
}

// Fence marks an object as written under a token. Call it before every create
// and update. A write to the status subresource cannot change annotations:
// there, set .status.fence to the token's String.
func Fence(obj metav1.Object, token Token) {
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[FenceAnnotation] = token.String()
	obj.SetAnnotations(annotations)
}
