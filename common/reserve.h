// Room for one more element, so that the next push_back cannot fail.
#pragma once

#include <vector>

namespace wstore {

// As push_back grows: a reserve(size() + 1) each time would copy all elements each time.
template <typename T>
void ReserveOneMore(std::vector<T>* vector) {
  if (vector->size() == vector->capacity()) vector->reserve(2 * vector->size() + 1);
}

}  // namespace wstore
