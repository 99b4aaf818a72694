package coordination

import (
	"fmt"
	"strconv"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// FenceAnnotation is the annotation that contains a token.
const FenceAnnotation = "coordination.atoll.dev/fence"

// A Token identifies one leadership: the time between two changes of a lease's holder. A
// later leadership of a lease has more Transitions. If the lease was deleted and recreated,
// its UID differs and Transitions restart. Then ResourceVersion, which never decreases in
// one workspace, is greater.
type Token struct {
	UID             types.UID
	Transitions     int32
	ResourceVersion string // of the lease, when it was taken
}

func tokenOf(lease *coordinationv1.Lease) Token {
	return Token{lease.UID, transitions(lease), lease.ResourceVersion}
}

// matches reports whether a token belongs to the leadership in a lease.
func (t Token) matches(lease *coordinationv1.Lease) bool {
	return t.UID == lease.UID && t.Transitions == transitions(lease) && !t.isZero()
}

func (t Token) isZero() bool { return t == Token{} }

// String returns the token as stored in objects: UID/TRANSITIONS/RESOURCEVERSION.
func (t Token) String() string {
	return fmt.Sprintf("%s/%d/%s", t.UID, t.Transitions, t.ResourceVersion)
}

// ParseToken parses the result of String.
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

// Fence marks an object as written with a token. Call it before every create and update. A
// write to the status subresource cannot change annotations: there, set .status.fence to
// the token's String.
func Fence(obj metav1.Object, token Token) {
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[FenceAnnotation] = token.String()
	obj.SetAnnotations(annotations)
}
