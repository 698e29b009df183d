/* Nodes of a container that a library with hidden visibility makes and the program frees: both must
 * use one cache. Compiled twice, as the library and as the program. */
#include <cstdio>
#include <list>
#include <uslab.hpp>

using numbers = std::list<int, uslab::allocator<int>>;

__attribute__((visibility("default"))) numbers made(int n);

#if defined(LIBRARY)

numbers made(int n)
{
    numbers list;
    for (int i = 0; i < n; i++) list.push_back(i);
    return list;
}

#else

int main()
{
    numbers list = made(1000);
    for (int i = 0; i < 500; i++) list.pop_front();
    for (int i = 0; i < 500; i++) list.push_back(i);
    list.clear();
    std::puts("ok");
    return 0;
}

#endif
