// Package mapping decides how the objects of a child workspace become objects of its parent, which places them in its clusters: in which
// namespaces, with which content, and which status they have back.
//
// It is pure: objects in, actions out.
package mapping

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// Child is a workspace whose objects its parent places.
type Child struct {
	// Name and UID are those of its Workspace, which is in the parent.
	Name string
	UID  types.UID
	// NamespaceLabels are additional labels of its namespaces in the parent.
	NamespaceLabels map[string]string
}

// User is the user that writes the copies of its objects in the parent.
func (c Child) User() string { return v1alpha1.PlacementUsers + c.Name }

const (
	// separator is between the names of the child and of the namespace.
	separator = "--"
	// hashLength is how many characters of the hash a name has that would otherwise be ambiguous or too long.
	hashLength = 10
)

// Namespace returns the name of the parent's namespace for a namespace of the child: CHILD--NAMESPACE, or a name with a hash if that would be too
// long or could be the name for another child.
func (c Child) Namespace(name string) string {
	plain := c.Name + separator + name
	if len(plain) <= validation.DNS1123LabelMaxLength && strings.Count(plain, separator) == 1 && !strings.Contains(plain, "---") {
		return plain
	}
	sum := sha256.Sum256([]byte(c.Name + " " + name))
	hash := hex.EncodeToString(sum[:])[:hashLength]
	most := validation.DNS1123LabelMaxLength - len(separator) - hashLength
	return strings.TrimRight(plain[:min(most, len(plain))], "-") + separator + hash
}

// Owns reports whether a namespace of the parent, or a copy in one, belongs to this child. A later workspace of the same name has another UID.
func (c Child) Owns(object metav1.Object) bool {
	return object.GetLabels()[v1alpha1.ChildUIDLabel] == string(c.UID)
}

// labels are on the child's namespaces in the parent and on its copies.
func (c Child) labels() map[string]string {
	return map[string]string{v1alpha1.ChildLabel: c.Name, v1alpha1.ChildUIDLabel: string(c.UID)}
}

// ChildOf returns the name and the UID of the child whose copy or namespace an object is; "" if it is none.
func ChildOf(object metav1.Object) (name, uid string) {
	labels := object.GetLabels()
	return labels[v1alpha1.ChildLabel], labels[v1alpha1.ChildUIDLabel]
}
