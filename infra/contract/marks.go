package contract

// Mark is what values of cty carry along with them, through every conversion and
// expression, whatever becomes of the values.
type Mark string

// Sensitive marks what is shown to nobody who may not read Secrets. Values are marked
// where they enter (a Secret, a schema that says so), and unmarked only
// to be sent to a provider or to be stored as state.
const Sensitive Mark = "sensitive"
